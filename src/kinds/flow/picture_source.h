// Pictures with captions, in any common form of data sets, found by content:
//
//   a folder of pictures       each with a .txt of the same name; without any .txt, file names are captions
//                              ("a_red_barn.png" is "a red barn")
//   JSON lines                 {"image": "path", "caption": "text"}; paths are relative to the file's folder. Also
//                              metadata.jsonl within a folder
//   rows                       Parquet or Arrow as in Hugging Face's image sets: a column of {bytes, path}, one of text
//   tar archives               WebDataset: the files of a sample differ in extension (.jpg, .txt, .json)
//
// The order is fixed, so that an interrupted run can resume.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace megalith {

struct CaptionedPicture {
  std::string where;    // the picture's file, line or row, for messages
  std::string bytes;    // the file's content (image/picture.h); empty if `fault` is set
  std::string caption;  // trimmed
  std::string fault;    // why there is no picture or no caption; else empty
  bool lacks_caption = false;
};

struct PictureSourceOptions {
  std::vector<std::string> input;
  // Keys of rows; if unset, the first of the usual ones in a row.
  std::optional<std::string> image_key, caption_key;
};

class PictureSource {
 public:
  virtual ~PictureSource() = default;
  // The next one; nothing at the end. UserError for an input that is damaged as a whole.
  virtual std::optional<CaptionedPicture> next() = 0;
  // Skips the next `count`.
  virtual void skip(int64_t count);
  // For a report: "a folder of pictures with .txt files".
  virtual std::string kind() const = 0;
  // Number of pictures, if known beforehand.
  virtual std::optional<int64_t> total() const { return std::nullopt; }
  // Changes with the names, sizes and times of the input's files.
  virtual std::string identity() const = 0;
};

// UserErrors, all at once: inputs that do not exist, hold no pictures, or are of different kinds.
std::unique_ptr<PictureSource> open_picture_source(const PictureSourceOptions& options);

// Largest picture file that is read.
inline constexpr int64_t kMaxPictureBytes = int64_t{1} << 28;

}  // namespace megalith
