// What the page of a run looks like and does: style sheet and script, as they are written into it.
#pragma once

namespace megalith {

// Colours as variables, for light and dark; the classes of svg_plot's elements; the page's own layout.
extern const char* const kRunPageStyle;

// Values under the pointer, the button for light and dark, and how long ago the page was written. Reads the charts'
// points from the script element "points": {"loss": [{"name": "train", "x": […], "y": […]}, …], …}.
extern const char* const kRunPageScript;

}  // namespace megalith
