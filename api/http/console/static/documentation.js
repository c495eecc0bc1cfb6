// Documentation: what a spec may name, and the routes, in the service's own words.

import { openapi } from "./api.js";
import { el, terms } from "./dom.js";

const PARTS = {
  workload: "What the optimizer sums",
  participation: "When an example takes part again",
  objective: "Which error is minimised",
  mechanism: "How the noise is correlated",
};

/** Show the kinds of each part of a spec and all routes, from the OpenAPI document. */
export async function documentationPage(main) {
  const { components, paths, info } = await openapi();
  const kinds = Object.entries(PARTS).map(([name, title]) => {
    const { mapping } = components.schemas.Spec.properties[name].discriminator;
    const named = Object.entries(mapping).map(([kind, reference]) => term(kind, components.schemas[reference.split("/").at(-1)].description));
    return [el("h3", {}, `${title}: ${name}`), terms(named)];
  });
  const routes = Object.entries(paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, { description }]) => term(`${method.toUpperCase()} ${path}`, description)));
  main.append(
    el("h1", {}, "Documentation"),
    el("p", {}, `What factorize ${info.version} understands. Programs read the same, with every field, in `, el("a", { href: "openapi.json" }, "its OpenAPI document"), ". ", el("code", {}, "factorize --help"), " lists the commands."),
    el("section", { class: "card reference", "aria-labelledby": "spec" }, el("h2", { id: "spec" }, "A spec"), el("p", {}, "A spec names a workload, a participation, an objective and a mechanism. ", el("a", { href: "#/compose" }, "Compose one"), "."), kinds),
    el("section", { class: "card reference", "aria-labelledby": "routes" }, el("h2", { id: "routes" }, "Routes"), terms(routes)),
  );
}

/** Return a name and the first paragraph of what is said of it. */
function term(name, description) {
  const [first] = (description ?? "").split("\n\n");
  return [el("code", {}, name), first.split("`").map((text, i) => (i % 2 ? el("code", {}, text) : text))];
}
