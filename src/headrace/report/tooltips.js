// Replaces each still plot by one with tooltips, once it is in view. Without it the page is complete.
(() => {
  "use strict";
  const small = matchMedia("(max-width: 520px)");
  const { configs } = JSON.parse(document.getElementById("look").textContent);

  const draw = async (figure) => {
    const { datasets, wide, narrow } = JSON.parse(figure.querySelector("script").textContent);
    const size = small.matches ? "narrow" : "wide";
    const place = figure.querySelector("." + size);
    if (place.dataset.live) return;
    const live = document.createElement("div");
    const chart = { ...(small.matches ? narrow : wide), datasets };
    await vegaEmbed(live, chart, {
      renderer: "svg",
      actions: false,
      ast: true, // the page forbids code from texts
      defaultStyle: false,
      config: configs[size],
      tooltip: { theme: "page", disableDefaultStyle: true },
    });
    place.dataset.live = "yes";
    place.replaceChildren(live);
  };

  const seen = new Set();
  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      seen.add(entry.target);
      draw(entry.target);
    }
  });
  document.querySelectorAll("figure.plot").forEach((figure) => watch.observe(figure));
  small.addEventListener("change", () => seen.forEach(draw));
})();
