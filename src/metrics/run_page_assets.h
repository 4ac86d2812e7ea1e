// A run page's style sheet and script.
#pragma once

namespace megalith {

// Colours, svg_plot's classes, layout.
extern const char* const kRunPageStyle;

// Tooltips, theme button, the page's age. Reads points from the script element "points": {"loss": [{"name": "train",
// "x": […], "y": […]}, …], …}.
extern const char* const kRunPageScript;

}  // namespace megalith
