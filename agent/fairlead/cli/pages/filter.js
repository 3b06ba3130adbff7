// Hides the tiles that do not match the text and the verdict. The page is whole without this script.
"use strict";
(function () {
  var form = document.getElementById("filter"), text = document.getElementById("text");
  var word = document.getElementById("word"), shown = document.getElementById("shown");
  var tiles = Array.prototype.slice.call(document.querySelectorAll(".tiles li"));
  function apply() {
    var wanted = text.value.toLowerCase(), count = 0;
    tiles.forEach(function (tile) {
      var fits = (!word.value || tile.dataset.word === word.value) && tile.dataset.text.indexOf(wanted) >= 0;
      tile.hidden = !fits;
      count += fits;
    });
    shown.textContent = count + " of " + tiles.length + " nodes";
  }
  form.hidden = false;
  form.addEventListener("input", apply);
  form.addEventListener("submit", function (e) { e.preventDefault(); });
  apply();
})();
