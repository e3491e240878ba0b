// Text to DOM: paragraphs, headings, lists, code, bold, italics. Everything a model wrote goes through
// createTextNode / textContent, never through innerHTML, so it cannot become markup.

const INLINE = /(`[^`\n]+`)|(\*\*[^*\n]+\*\*)|(\*[^*\s](?:[^*\n]*[^*\s])?\*)/g;

export function render(target, text) {
  const blocks = [];
  // Odd pieces are the insides of ``` fences; while streaming, the last fence may still be open.
  text.split(/^```/m).forEach((piece, i) => {
    if (i % 2) blocks.push(codeBlock(piece));
    else blocks.push(...prose(piece));
  });
  target.replaceChildren(...blocks);
}

function codeBlock(piece) {
  const code = element("code", piece.slice(piece.indexOf("\n") + 1 || piece.length).replace(/\n$/, ""));
  const copy = element("button", "Copy");
  copy.type = "button";
  copy.className = "quiet copy";
  const box = element("div");
  box.className = "code";
  const pre = element("pre");
  pre.append(code);
  box.append(pre);
  if (navigator.clipboard) box.append(copy); // only over HTTPS or on localhost
  return box;
}

function prose(text) {
  const blocks = [];
  for (const paragraph of text.split(/\n{2,}/)) {
    let lines = [];
    const flush = () => {
      if (lines.join("").trim()) blocks.push(withInline("p", lines.join("\n").trim()));
      lines = [];
    };
    for (const line of paragraph.split("\n")) {
      const heading = /^#{1,6}\s+(.*)/.exec(line);
      const item = /^\s*(?:([-*•])|\d+[.)])\s+(.*)/.exec(line);
      if (heading) {
        flush();
        blocks.push(withInline("h3", heading[1]));
      } else if (item) {
        flush();
        addItem(blocks, item[1] ? "UL" : "OL", line, item[2]);
      } else {
        lines.push(line);
      }
    }
    flush();
  }
  return blocks;
}

function addItem(blocks, tag, line, text) {
  let list = blocks.at(-1);
  if (list?.tagName !== tag) {
    list = element(tag);
    if (tag === "OL") list.start = parseInt(line, 10);
    blocks.push(list);
  }
  list.append(withInline("li", text));
}

function withInline(tag, text) {
  const parent = element(tag);
  let end = 0;
  for (const match of text.matchAll(INLINE)) {
    parent.append(text.slice(end, match.index));
    const [whole, code, bold] = match;
    if (code) parent.append(element("code", whole.slice(1, -1)));
    else if (bold) parent.append(element("strong", whole.slice(2, -2)));
    else parent.append(element("em", whole.slice(1, -1)));
    end = match.index + whole.length;
  }
  parent.append(text.slice(end));
  return parent;
}

export function element(tag, text = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  return made;
}
