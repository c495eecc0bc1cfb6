// One factorization by its digest: the job while there is no result, then the result.

import { askJson } from "./api.js";
import { jobPage } from "./job.js";
import { resultPage } from "./result.js";

/** Show a job or a result. */
export async function factorizationPage(main, { signal, name }) {
  const show = async () => {
    const found = await askJson(`/v1/factorizations/${name}`, { signal });
    main.replaceChildren();
    if (found.certificate) await resultPage(main, found, { signal });
    else await jobPage(main, found, { signal, again: show });
  };
  await show();
}
