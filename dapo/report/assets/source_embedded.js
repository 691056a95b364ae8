// Answers from the bundle that the page carries. The server's page has another source with the same questions.

function embeddedSource(bundle) {
  const runOf = (label) => bundle.runs.find((run) => run.label === label) || null;
  const given = (value) => value !== null && value !== undefined && value !== "";
  const holds = (parts, text) => parts.some((part) => typeof part === "string" && part.toLowerCase().includes(text));
  const slim = (one) => ({ ...one, responses: [] });

  return {
    async bundle() {
      return bundle;
    },

    async groups({ run, step, verdict, disposition, source, text, prompt, tokens, offset = 0, limit = 500 }) {
      const found = runOf(run);
      const words = given(text) ? text.toLowerCase() : "";
      const fits = (one) =>
        (!given(step) || one.step === Number(step)) &&
        (!given(verdict) || (one.verdict || "") === verdict) &&
        (!given(disposition) || (one.disposition || "") === disposition) &&
        (!given(source) || one.source === source) &&
        (!given(prompt) || one.prompt_id === prompt) &&
        (!tokens || one.has_tokens) &&
        (!words || holds([one.problem, one.prompt, one.answer, one.prompt_id, ...one.responses.map((r) => r.text)], words));
      const groups = found ? found.rollouts.groups.filter(fits) : [];
      return { groups: groups.slice(offset, offset + limit).map(slim), total: groups.length };
    },

    async group(run, step, group) {
      const found = runOf(run);
      return (
        (found && found.rollouts.groups.find((one) => one.step === Number(step) && one.group === Number(group))) || null
      );
    },

    async prompts({ run, text, offset = 0, limit = 500 }) {
      const found = runOf(run);
      const words = given(text) ? text.toLowerCase() : "";
      const fits = (one) => !words || holds([one.prompt, one.answer, one.id, one.source], words);
      const prompts = found ? found.rollouts.prompts.filter(fits) : [];
      return { prompts: prompts.slice(offset, offset + limit), total: prompts.length };
    },

    async prompt(run, id) {
      const found = runOf(run);
      return (found && found.rollouts.prompts.find((one) => one.id === id)) || null;
    },
  };
}

/** The JSON in a block of the page that Python's `packed` wrote, or null where there is no such block. */
async function unpacked(id) {
  const block = document.getElementById(id);
  if (!block) return null;
  const bytes = Uint8Array.from(atob(block.textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}
