"""The class that clients of a model extend."""


class Client:
    def __init__(self, client):
        self.client = client

    async def get_response(self, prompt, model, sampling_args, tools):
        native, _ = await self.to_native_prompt(prompt)
        response = await self.get_native_response(native, model, sampling_args, tools)
        await self.raise_from_native_response(response)
        return await self.from_native_response(response)
