// The chat page: one conversation, streamed from /v1/chat/completions.
import { element, render } from "./render.js";

const $ = (id) => document.getElementById(id);
let turns = []; // {role, content}, as the API takes them; a new chat has a new array
let running = null; // AbortController of the answer being streamed
const HINT = "Enter sends, Shift + Enter makes a new line.";

// ---- The server ------------------------------------------------------------------------------------

function headers() {
  const key = $("api-key").value.trim();
  return key ? { Authorization: `Bearer ${key}` } : {};
}

async function loadEngine() {
  try {
    const response = await fetch("/v1/engine", { headers: headers() });
    if (response.status === 401) {
      $("model").textContent = "API key needed";
      openSettings(true);
      $("api-key").focus();
      return;
    }
    if (!response.ok) throw new Error(`status ${response.status}`);
    const info = await response.json();
    const name = info.config.model.served_name;
    $("model").textContent = name;
    document.title = `${name} · chat`;
    showEngine(info.decision.chosen);
    showFacts(info);
  } catch {
    $("model").textContent = "Server not reachable";
  }
}

function showEngine(engine) {
  $("engine-name").textContent = engine.toUpperCase();
  $("engine").hidden = false;
}

function showFacts(info) {
  const { config, decision, model_limits: limits } = info;
  const rows = {
    Engine: `${decision.chosen.toUpperCase()} — ${decision.reasons.join("; ")}`,
    "Chosen by": decision.source,
    Model: config.model.served_name,
    Architecture: `${config.model.architecture.family}, ${config.model.architecture.num_layers} layers`,
    Weights: `${config.model.load_format}, computed in ${config.model.dtype}`,
    Device: `${config.device}, ${config.attention_backend} attention, ${config.num_threads} threads`,
    Context: `${(limits?.max_model_len ?? config.model.max_model_len).toLocaleString()} tokens`,
    "KV cache": `${config.cache.num_blocks.toLocaleString()} blocks of ${config.cache.block_size} tokens`,
    "One step": `at most ${config.scheduler.max_num_seqs} requests, ${config.scheduler.max_num_batched_tokens} tokens`,
    Version: info.version,
  };
  $("facts").replaceChildren(...Object.entries(rows).flatMap(([k, v]) => [element("dt", k), element("dd", v)]));
}

// Yields the JSON of each event; throws the error of an error event, and if the stream breaks off.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("The connection was lost before the answer was complete.");
    buffer += value;
    const whole = buffer.split("\n\n");
    buffer = whole.pop();
    for (const event of whole) {
      const data = event.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const message = JSON.parse(data);
      if (message.error) throw new Error(message.error.message);
      yield message;
    }
  }
}

// ---- One answer ------------------------------------------------------------------------------------

async function answer() {
  const conversation = turns;
  const turn = addTurn("assistant");
  turn.classList.add("busy");
  const text = turn.querySelector(".text");
  const reply = { content: "", tokens: 0, sent: performance.now(), first: 0, last: 0, engine: "", reason: "" };
  setRunning(new AbortController());
  let frame = 0;
  const paint = () => {
    frame = 0;
    render(text, reply.content);
    $("live").textContent = describe(reply);
    followEnd();
  };
  paint();
  try {
    await stream(conversation, reply, () => (frame ||= requestAnimationFrame(paint)));
  } catch (error) {
    if (running.signal.aborted) reply.reason = "stopped";
    else showProblem(turn, error);
  } finally {
    cancelAnimationFrame(frame);
    setRunning(null);
    paint();
    turn.classList.remove("busy");
  }
  if (reply.content) conversation.push({ role: "assistant", content: reply.content });
  addFacts(turn, reply);
}

async function stream(conversation, reply, changed) {
  const system = $("system").value.trim();
  const response = await fetch("/v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json", ...headers() },
    signal: running.signal,
    body: JSON.stringify({
      messages: system ? [{ role: "system", content: system }, ...conversation] : conversation,
      temperature: Number($("temperature").value),
      max_completion_tokens: Number($("max-tokens").value),
      stream: true,
      stream_options: { include_usage: true, continuous_usage_stats: true },
    }),
  });
  reply.engine = response.headers.get("x-engine") ?? "";
  if (!response.ok) {
    const body = await response.json().catch(() => null);
    throw new Error(body?.error?.message ?? `The server answered ${response.status}.`);
  }
  for await (const event of events(response)) {
    const choice = event.choices[0];
    if (event.usage) reply.tokens = event.usage.completion_tokens;
    if (choice?.delta.content) {
      reply.last = performance.now();
      reply.first ||= reply.last;
      reply.content += choice.delta.content;
    }
    if (choice?.finish_reason) reply.reason = choice.finish_reason;
    changed();
  }
}

function describe(reply) {
  if (!reply.first) return running ? "Waiting for the first token…" : HINT;
  return facts(reply).join(" · ");
}

function facts(reply) {
  const list = [];
  const seconds = (reply.last - reply.first) / 1000;
  if (reply.first) list.push(`TTFT ${formatMs(reply.first - reply.sent)}`);
  if (reply.tokens) list.push(`${reply.tokens} token${reply.tokens === 1 ? "" : "s"}`);
  if (reply.tokens > 1 && seconds > 0) list.push(`${((reply.tokens - 1) / seconds).toFixed(1)} tokens/s`);
  if (reply.reason === "length") list.push("cut at max tokens");
  if (reply.reason === "stopped") list.push("stopped");
  return list;
}

function formatMs(ms) {
  return ms < 1000 ? `${ms.toFixed(0)} ms` : `${(ms / 1000).toFixed(2)} s`;
}

// ---- The page --------------------------------------------------------------------------------------

function addTurn(role, content = "") {
  $("welcome").hidden = true;
  const turn = element("article");
  turn.className = `turn ${role}`;
  turn.setAttribute("aria-label", role === "user" ? "You" : "Assistant");
  const text = element("div", content);
  text.className = "text";
  turn.append(text);
  $("log").append(turn);
  $("scroll").scrollTop = $("scroll").scrollHeight;
  return turn;
}

function addFacts(turn, reply) {
  const line = element("p");
  line.className = "facts";
  if (reply.engine) line.append(element("b", reply.engine.toUpperCase()));
  line.append(["", ...facts(reply)].join(" · "));
  if (line.textContent) turn.append(line);
  followEnd();
}

function showProblem(turn, error) {
  const offline = error instanceof TypeError;
  const box = element("div", offline ? "The server cannot be reached." : error.message);
  box.className = "problem";
  box.setAttribute("role", "alert");
  const retry = element("button", "Try again");
  retry.type = "button";
  retry.addEventListener("click", () => {
    if (running) return;
    while (turns.at(-1)?.role === "assistant") turns.pop();
    turn.remove();
    answer();
  });
  box.append(retry);
  turn.append(box);
  box.scrollIntoView({ block: "nearest" });
}

// Follows the text only while the reader is at its end.
function followEnd() {
  const view = $("scroll");
  if (view.scrollHeight - view.scrollTop - view.clientHeight < 120) view.scrollTop = view.scrollHeight;
}

function setRunning(controller) {
  running = controller;
  $("send").classList.toggle("stop", Boolean(controller));
  $("send").setAttribute("aria-label", controller ? "Stop" : "Send");
  updateSend();
}

function updateSend() {
  $("send").disabled = !running && !$("input").value.trim();
}

function fitInput() {
  const input = $("input");
  input.style.height = "auto";
  input.style.height = `${input.scrollHeight}px`;
  updateSend();
}

function submit(content) {
  if (running || !content) return;
  if (!$("settings").reportValidity()) return openSettings(true);
  turns.push({ role: "user", content });
  addTurn("user", content);
  $("input").value = "";
  fitInput();
  answer();
}

function openSettings(open) {
  $("settings").hidden = !open;
  $("settings-toggle").setAttribute("aria-expanded", String(open));
}

function newChat() {
  running?.abort();
  turns = [];
  $("log").replaceChildren();
  $("welcome").hidden = false;
  $("live").textContent = HINT;
  $("input").focus();
}

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  if (running) running.abort();
  else submit($("input").value.trim());
});
$("input").addEventListener("input", fitInput);
$("input").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  submit($("input").value.trim());
});
$("welcome").addEventListener("click", (event) => {
  if (event.target.matches(".ideas button")) submit(event.target.textContent);
});
$("log").addEventListener("click", async (event) => {
  if (!event.target.matches(".copy")) return;
  await navigator.clipboard.writeText(event.target.parentElement.querySelector("code").textContent);
  event.target.textContent = "Copied";
});
$("settings").addEventListener("submit", (event) => event.preventDefault());
$("settings-toggle").addEventListener("click", () => openSettings($("settings").hidden));
$("temperature").addEventListener("input", () => {
  $("temperature-value").textContent = Number($("temperature").value).toFixed(2).replace(/0$/, "");
});
$("api-key").addEventListener("change", loadEngine);
$("engine").addEventListener("click", () => $("about").showModal());
$("new-chat").addEventListener("click", newChat);
$("theme").addEventListener("click", () => {
  const dark = getComputedStyle(document.documentElement).colorScheme === "dark" ||
    (!document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
  const theme = dark ? "light" : "dark";
  localStorage.setItem("theme", theme);
  setTheme(theme);
});

setTheme(localStorage.getItem("theme"));
$("live").textContent = HINT;
updateSend();
loadEngine();
