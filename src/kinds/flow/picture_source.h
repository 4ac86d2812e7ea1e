// Pictures with captions, in whatever form a data set has them. Its kind is found by content:
//
//   a folder of pictures       each with a .txt of the same name beside it; without any .txt, file names are captions
//                              ("a_red_barn.png" says "a red barn")
//   JSON lines                 {"image": "path", "caption": "text"}; paths are relative to the file's folder. Also
//                              metadata.jsonl within a folder
//   rows                       Parquet or Arrow as Hugging Face has image sets: a column of {bytes, path}, one of text
//   tar archives               WebDataset: the files of a sample have one name and other endings (.jpg, .txt, .json)
//
// Rows come in one order, so a run that stopped goes on behind those that it has read.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace megalith {

struct CaptionedPicture {
  std::string where;    // the picture's file, line or row, for messages
  std::string bytes;    // a file as it lies there (image/picture.h); empty when `fault` says why
  std::string caption;  // without blanks at its ends
  std::string fault;    // why there is no picture or no caption; empty when there is
  bool lacks_caption = false;
};

struct PictureSourceOptions {
  std::vector<std::string> input;
  // The keys of rows; unset, the first of the usual ones that a row has.
  std::optional<std::string> image_key, caption_key;
};

class PictureSource {
 public:
  virtual ~PictureSource() = default;
  // The next one; nothing at the end. UserError for an input that is damaged as a whole.
  virtual std::optional<CaptionedPicture> next() = 0;
  // Passes over the next `count`.
  virtual void skip(int64_t count);
  // What it is, for a report: "a folder of pictures with .txt files".
  virtual std::string kind() const = 0;
  // Pictures, where they are counted beforehand.
  virtual std::optional<int64_t> total() const { return std::nullopt; }
  // Changes when the input does: names, sizes and times of its files.
  virtual std::string identity() const = 0;
};

// UserErrors, all at once: inputs that do not exist, hold no pictures, or are of different kinds.
std::unique_ptr<PictureSource> open_picture_source(const PictureSourceOptions& options);

// Bytes of a file of the largest picture that is read.
inline constexpr int64_t kMaxPictureBytes = int64_t{1} << 28;

}  // namespace megalith
