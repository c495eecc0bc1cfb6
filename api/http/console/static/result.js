// A result: what is certified, pictures, the noise scale, files, and the lines of code that use it.

import { askJson, save } from "./api.js";
import { certificateCard } from "./certificate.js";
import { codeCard } from "./code.js";
import { compose } from "./compose.js";
import { button, el } from "./dom.js";
import { errorsCard } from "./errors.js";
import { bytes, summary } from "./formats.js";
import { heatmapCard } from "./heatmap.js";
import { noiseCard } from "./noise.js";
import { sigmaCard } from "./sigma.js";

/** Show a result; pictures come when they are asked for or when they are in view. */
export async function resultPage(main, manifest, { signal }) {
  const title = summary(manifest.spec);
  document.title = `${title} · factorize`;
  main.append(
    el("h1", {}, title),
    el("p", { class: "actions" }, button("Compose another from this spec", () => compose(manifest.spec))),
    el("div", { class: "panels" }, certificateCard(manifest), sigmaCard(manifest, signal)),
    el("div", { class: "panels" }, heatmapCard(manifest, signal), errorsCard(manifest, signal)),
    noiseCard(manifest, signal),
    el("div", { class: "panels" }, filesCard(manifest), codeCard(manifest)),
  );
}

function filesCard(manifest) {
  const name = manifest.digest.slice(0, 12);
  const [file] = manifest.files;
  const form = (query, text) =>
    button(text, async () => {
      const found = await askJson(`/v1/factorizations/${manifest.digest}?${query}`, { method: "POST" });
      await save(`/v1/blobs/${found.files[0].sha256}`, `${found.digest.slice(0, 12)}.safetensors`);
    });
  return el(
    "section",
    { class: "card", "aria-labelledby": "files" },
    el("h2", { id: "files" }, "Files"),
    el("p", {}, `C with its evidence and the manifest, ${bytes(file.bytes)}. It opens with the safetensors library.`),
    el(
      "p",
      { class: "actions" },
      button("Download C", () => save(`/v1/blobs/${file.sha256}`, `${name}.safetensors`)),
      form("matrices=C,C_inv,B", "C, C^-1 and B"),
      form("dtype=float32", "C in float32"),
      button("Manifest", () => save(`/v1/factorizations/${manifest.digest}`, `${name}.json`)),
    ),
    el("p", { class: "hint" }, "A form that nobody has asked for yet is made and certified first."),
  );
}
