"""Agents that behave, and agents that do not; they speak plain HTTP. Each returns what it saw as a score."""

import asyncio
import contextlib
import http.client
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from urllib.parse import urlparse

SEEN = []  # keys of earlier episodes in this process

POST = "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"


def post(base_url, api_key, messages, path="/chat/completions", **more):
    """Return the status and the body of an answer."""
    body = json.dumps({"model": "policy", "messages": messages, **more}).encode()
    return post_bytes(base_url, api_key, body, path)


def post_bytes(base_url, api_key, body, path="/chat/completions"):
    head = {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"}
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{base_url}{path}", body, head), timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def ask(base_url, api_key, messages, **more):
    status, body = post(base_url, api_key, messages, **more)
    assert status == 200, body
    return json.loads(body)["choices"][0]["message"]


def user(text):
    return {"role": "user", "content": text}


def chain(prompt, *, base_url, api_key, rounds=3):
    """A conversation that grows."""
    messages = [user("w5 w6")]
    for number in range(rounds):
        messages += [ask(base_url, api_key, messages), user(f"w{7 + number} w9")]
    return 1.0


async def waits(prompt, *, base_url, api_key, rounds=3):
    """As ``chain``, without a thread of its own."""
    messages = [user("w5 w6")]
    for number in range(rounds):
        said = await asyncio.to_thread(ask, base_url, api_key, messages)
        messages += [said, user(f"w{7 + number} w9")]
    return {"accuracy": 1.0}


def bounds(prompt, *, base_url, api_key):
    """Asks for three tokens at most, and then for more than the recipe grants a turn."""
    messages = [user("w5 w6")]
    for most in (3, 500):
        said = ask(base_url, api_key, messages, max_completion_tokens=most)
        messages += [said, user("w9")]
    return 1.0


def others(prompt, *, base_url, api_key):
    """Goes on, forgets its last exchange, and at last asks something else."""
    first = [user("w5 w6")]
    second = [*first, ask(base_url, api_key, first), user("w9")]
    third = [*second, ask(base_url, api_key, second), user("w10")]
    ask(base_url, api_key, [*second[:2], user("w11")])  # another answer to the first turn
    ask(base_url, api_key, third)  # back to the longest conversation
    ask(base_url, api_key, [user("w12 w13")])
    return 1.0


def repeats(prompt, *, base_url, api_key):
    """Asks the same twice."""
    for _ in range(2):
        ask(base_url, api_key, [user("w5 w6")])
    return 1.0


def continues_the_second(prompt, *, base_url, api_key):
    """Asks the same twice, and goes on with the second answer."""
    first = [user("w5 w6")]
    ask(base_url, api_key, first)
    ask(base_url, api_key, [*first, ask(base_url, api_key, first), user("w9")])
    return 1.0


def hangs_up(prompt, *, base_url, api_key):
    """Leaves before the answer comes, and asks the same again; later it leaves for good."""
    where = urlparse(base_url)
    body = json.dumps({"messages": [user("w5 w6")]}).encode()
    head = f"{POST}Authorization: Bearer {api_key}\r\nContent-Length: {len(body)}\r\n\r\n"
    for _ in range(3):
        with socket.create_connection((where.hostname, where.port)) as connection:
            connection.sendall(head.encode() + body)
    said = ask(base_url, api_key, [user("w5 w6")])
    ask(base_url, api_key, [user("w5 w6"), said, user("w9")])
    with socket.create_connection((where.hostname, where.port)) as connection:
        connection.sendall(head.encode() + body)
    return 1.0


def wrong_keys(prompt, *, base_url, api_key):
    """No key, a key of nobody, a key of an episode that is over."""
    own = ask(base_url, api_key, [user("w5 w6")])
    codes = [post(base_url, key, [user("w5 w6")])[0] for key in ("", "nobody", api_key[:-1], *SEEN)]
    SEEN.append(api_key)
    return float(set(codes) == {401} and own["role"] == "assistant")


def parallel(prompt, *, base_url, api_key):
    """Asks with two clients at once."""
    found = []
    threads = [
        threading.Thread(target=lambda n=n: found.append(ask(base_url, api_key, [user(f"w{n}")]))) for n in (5, 6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return float(len(found) == 2)


def goes_on(prompt, *, base_url, api_key):
    """Asks until it is refused, and returns how that was said."""
    messages = [user("w5 w6")]
    while True:
        status, body = post(base_url, api_key, messages)
        if status != 200:
            said = json.loads(body)["error"]
            return 0.25 if status == 400 and said["code"] == "episode_over" and "max_turns" in said["message"] else 0.0
        messages += [json.loads(body)["choices"][0]["message"], user("w9")]


def refused(prompt, *, base_url, api_key):
    """Asks for what no run does; each refusal names it."""
    wrong = {
        "temperature": 0.5, "n": 2, "logprobs": True, "stop": ["x"], "seed": 3, "response_format": {"type": "json"},
        "tools": [{"type": "function", "function": {"name": "add"}}], "max_tokens": 0, "top_p": 0.9,
    }  # fmt: skip
    fine = True
    for name, value in wrong.items():
        status, body = post(base_url, api_key, [user("w5")], **{name: value})
        fine = fine and status == 400 and (name in body.decode() or name in ("max_tokens", "tools"))
    for messages in (
        [],
        "text",
        [{"role": "robot", "content": "x"}],
        [{"role": "user", "content": [{"type": "image"}]}],
    ):
        fine = fine and post(base_url, api_key, messages)[0] == 400
    fine = fine and post(base_url, api_key, [user("w5")], path="/completions")[0] == 404
    refusal = raw(base_url, POST.encode() + b"Content-Length: 9\r\n\r\n", b"123456789")
    fine = fine and refusal.startswith(b"HTTP/1.1 401")
    ask(base_url, api_key, [user("w5 w6")], temperature=None, n=1, max_completion_tokens=2)
    return float(fine)


def equal(prompt, *, base_url, api_key):
    """Asks for the recipe's own sampling in each of its ways."""
    ways = [
        {"temperature": 1, "top_p": 0.9, "seed": 4, "n": 1, "logprobs": False, "stop": "END"},
        {"temperature": 1.0, "stop": ["END"], "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0},
    ]
    return float(all(post(base_url, api_key, [user("w5")], **way)[0] == 200 for way in ways))


def other_sampling(prompt, *, base_url, api_key):
    """Asks for other sampling; returns the share that was answered."""
    wrong = {"temperature": 0.5, "top_p": 0.5, "seed": 5, "stop": ["x"], "logprobs": True, "n": 2}
    ask(base_url, api_key, [user("w5 w6")])
    return sum(post(base_url, api_key, [user("w5")], **{name: value})[0] == 200 for name, value in wrong.items()) / 6


def raw(base_url, *pieces, more=True):
    """Send bytes over a connection of their own and return what comes back until it closes, or is reset."""
    where = urlparse(base_url)
    with socket.create_connection((where.hostname, where.port)) as connection, contextlib.suppress(ConnectionError):
        for piece in pieces:
            connection.sendall(piece)
        if not more:
            connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))
    return b""


def halves(prompt, *, base_url, api_key):
    """Hangs up in the head and in the body of a request; leaves one half open."""
    head = f"{POST}Authorization: Bearer {api_key}\r\nContent-Length: 900\r\n\r\n".encode()
    said = [raw(base_url, head[:40], more=False), raw(base_url, head, b'{"messages": [', more=False)]
    where = urlparse(base_url)
    with socket.create_connection((where.hostname, where.port)) as connection:
        connection.sendall(head + b'{"messages"')
        ask(base_url, api_key, [user("w5 w6")])
    return float(said == [b"", b""])


def floods(prompt, *, base_url, api_key):
    """Sends 50 MB and reads the answer only then; heads without an end; lengths that are none."""
    line, rest = POST.encode(), [bytes(1 << 20)] * 50
    own = line + f"Authorization: Bearer {api_key}\r\n".encode()
    large = [raw(base_url, head + b"Content-Length: 52428800\r\n\r\n", *rest) for head in (own, line)]
    chunked = raw(base_url, own + b"Transfer-Encoding: chunked\r\n\r\n", b"5\r\nhello\r\n0\r\n\r\n")
    broken = [raw(base_url, own + b"Content-Length: %s\r\n\r\n" % length) for length in (b"-1", b"1e3", b"9" * 5000)]
    broken.append(raw(base_url, line, *[b"x: " + b"y" * 9000 + b"\r\n"] * 400))
    ask(base_url, api_key, [user("w5 w6")])
    refused = [answer[9:12] for answer in [*large, chunked]] == [b"413", b"401", b"400"]
    return float(refused and all(answer[9:12] in (b"400", b"") for answer in broken))


def nested(levels):
    return "[" * levels + "]" * levels


def odd_json(prompt, *, base_url, api_key):
    """Sends JSON that Python reads and others do not: each is refused, or served with question marks."""
    call = '{"id": "1", "type": "function", "function": {"name": "add", "arguments": %s}}'
    arguments = ("NaN", "1e999", nested(100), nested(5000), '"{\\"a\\": NaN}"', json.dumps(nested(100)), '"{"')
    more = ('"tool_calls": [%s]' % (call % each) for each in arguments)
    more = [*more, '"tool_calls": true', '"tool_calls": ["x"]', '"content": NaN', '"content": 3']
    codes = set()
    for each in more:
        body = '{"messages": [{"role": "user", "content": "w5"}, {"role": "assistant", ' + each + "}]}"
        codes.add(post_bytes(base_url, api_key, body.encode())[0])
    for body in (b"", b"\xff", b"[]", b"null", b'{"messages": {}}', nested(10**5).encode()):
        codes.add(post_bytes(base_url, api_key, body)[0])
    broken = {"role": "assistant", "tool_calls": [json.loads(call % '"{\\"\\ud800\\": \\"\\udc00\\"}"')]}
    broken["tool_calls"][0]["id"] = "\ud800"
    ask(base_url, api_key, [user("w5"), broken, {**user("w6"), "name": "\udfff"}])
    return float(codes == {400})


def abuses(prompt, *, base_url, api_key):
    """Abuses the endpoint, and then behaves."""
    return float(all(each(prompt, base_url=base_url, api_key=api_key) for each in (halves, odd_json, chain)))


def streams(prompt, *, base_url, api_key):
    """Reads a stream, and goes on with what it read."""
    status, body = post(base_url, api_key, [user("w5 w6")], stream=True)
    events = [line.removeprefix("data: ") for line in body.decode().split("\n\n") if line]
    assert events.pop() == "[DONE]"
    text = "".join(json.loads(each)["choices"][0]["delta"].get("content", "") for each in events)
    ask(base_url, api_key, [user("w5 w6"), {"role": "assistant", "content": text}, user("w9")])
    return float(status == 200 and "finish_reason" in events[-1])


def keeps_connection(prompt, *, base_url, api_key):
    """Asks twice over one connection."""
    where = urlparse(base_url)
    connection = http.client.HTTPConnection(where.hostname, where.port)
    for text in ("w5", "w6"):
        body = json.dumps({"messages": [user(text)]})
        connection.request("POST", "/v1/chat/completions", body, {"Authorization": f"Bearer {api_key}"})
        assert connection.getresponse().read()
    connection.request("GET", "/v1/models", headers={"Authorization": f"Bearer {api_key}"})
    return float(json.loads(connection.getresponse().read())["data"][0]["id"] == "policy")


def raises(prompt, *, base_url, api_key):
    ask(base_url, api_key, [user("w5 w6")])
    raise ValueError("bad tool")


def sleeps(prompt, *, base_url, api_key):
    ask(base_url, api_key, [user("w5 w6")])
    time.sleep(3600)


def overruns(prompt, *, base_url, api_key):
    """Asks until it is refused, and does not end then."""
    goes_on(prompt, base_url=base_url, api_key=api_key)
    time.sleep(3600)


def never_asks(prompt, *, base_url, api_key):
    return 1.0


def returns_text(prompt, *, base_url, api_key):
    ask(base_url, api_key, [user("w5 w6")])
    return "well done"


def moody(prompt, *, base_url, api_key):
    """Asks something else each time it is played."""
    messages = [user(f"w{5 + time.time_ns() % 20} w6")]
    for _ in range(3):
        messages += [ask(base_url, api_key, messages), user("w9")]
    return 1.0
