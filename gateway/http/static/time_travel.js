"use strict";
// Shows the time of the slider while it moves. Without scripts the page shows it after the button.
for (const form of document.querySelectorAll("form.time-travel")) {
  const slider = form.querySelector("input[type=range]");
  const shown = form.querySelector("output");
  slider.addEventListener("input", () => {
    shown.textContent = new Date(Number(slider.value)).toISOString().replace("T", " ").replace("Z", " UTC");
  });
}
