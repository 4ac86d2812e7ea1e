// Style sheet and script of a run's page.
#pragma once

namespace megalith {

// Light and dark colours as variables, svg_plot's classes, the page's layout.
extern const char* const kRunPageStyle;

// Tooltips, the theme button, the page's age. Reads the charts' points from the script element "points": {"loss":
// [{"name": "train", "x": […], "y": […]}, …], …}.
extern const char* const kRunPageScript;

}  // namespace megalith
