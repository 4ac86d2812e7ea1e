// A picture and its caption in a row: JSON lines, rows of tables, the .json of a WebDataset.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "core/json.h"
#include "kinds/flow/picture_source.h"

namespace megalith {

// The picture of a row: a path relative to `folder`, or {"bytes": base64, "path": …}. Errors go to the result's fault.
CaptionedPicture picture_of_row(const Json& row, const std::filesystem::path& folder,
                                const PictureSourceOptions& options, std::string where);

// Sets the caption from the row's first usual key, or the fault if there is none.
void take_caption(const Json& row, const PictureSourceOptions& options, CaptionedPicture& picture);
// The same from a text.
void take_caption(std::string_view text, CaptionedPicture& picture);

// Reads the file into the picture, or sets the fault.
void take_file(const std::filesystem::path& path, CaptionedPicture& picture);

}  // namespace megalith
