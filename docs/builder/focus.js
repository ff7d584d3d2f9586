// Code and tables that are wider than the page scroll sideways; with a keyboard too, if they can have the focus.
function takeFocus() {
  for (const region of document.querySelectorAll("pre > code, .md-typeset__scrollwrap")) {
    if (region.scrollWidth > region.clientWidth) region.tabIndex = 0
    else region.removeAttribute("tabindex")
  }
}
addEventListener("load", takeFocus)
addEventListener("resize", takeFocus)
