#include "kinds/flow/picture_source.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/checksum.h"
#include "core/error.h"
#include "core/file.h"
#include "core/input_file.h"
#include "core/json.h"
#include "core/strings.h"
#include "data/arrow_source.h"
#include "data/json_rows.h"
#include "data/throw_errors.h"
#include "image/picture.h"
#include "kinds/flow/picture_rows.h"
#include "kinds/flow/tar_reader.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

// Extensions of pictures, including unsupported kinds, so that such files are counted, not overlooked.
constexpr std::string_view kPictureEndings[] = {".jpg", ".jpeg", ".png",  ".webp", ".gif",
                                                ".bmp", ".tif",  ".tiff", ".avif", ".heic"};

std::string ending_of(const fs::path& path) { return lower_case(path.extension().string()); }

bool is_picture_name(const fs::path& path) {
  const std::string ending = ending_of(path);
  return std::find(std::begin(kPictureEndings), std::end(kPictureEndings), ending) != std::end(kPictureEndings);
}

enum class PictureForm { kTextFiles, kFileNames, kLines, kRows, kTars };

std::string form_text(PictureForm form) {
  switch (form) {
    case PictureForm::kTextFiles:
      return "a folder of pictures with .txt files";
    case PictureForm::kFileNames:
      return "a folder of pictures whose names are captions";
    case PictureForm::kLines:
      return "JSON lines";
    case PictureForm::kRows:
      return "rows of Parquet or Arrow";
    case PictureForm::kTars:
      return "tar archives (WebDataset)";
  }
  fail_internal(__FILE__, __LINE__, "form", "no such form");
}

struct PictureInput {
  PictureForm form = PictureForm::kTextFiles;
  std::vector<fs::path> files;
};

std::string beginning_of_text(const fs::path& path) {
  const std::unique_ptr<TextSource> text = open_text(path.string());
  std::string beginning(512, '\0');
  size_t size = 0;
  while (size < beginning.size()) {
    const size_t count = text->read(std::span(beginning).subspan(size));
    if (count == 0) break;
    size += count;
  }
  beginning.resize(size);
  return beginning;
}

PictureInput input_of_file(const fs::path& path) {
  if (is_rows_file(path.string())) return {PictureForm::kRows, {path}};
  const std::string beginning = beginning_of_text(path);
  if (is_tar(beginning)) return {PictureForm::kTars, {path}};
  if (trim(beginning).starts_with('{')) return {PictureForm::kLines, {path}};
  if (kind_of_picture(beginning) != PictureKind::kUnknown) {
    throw UserError(fmt::format("{} is one picture", path.string()),
                    "name the folder that it is in; a text file of the same name is its caption");
  }
  throw UserError(fmt::format("{} holds no pictures that are known", path.string()),
                  "name a folder of pictures, JSON lines with paths and captions, Parquet, or tar archives");
}

std::vector<fs::path> files_below(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code code;
  fs::recursive_directory_iterator it(folder, fs::directory_options::skip_permission_denied, code), end;
  while (!code && it != end) {
    const bool is_hidden = it->path().filename().string().starts_with('.');
    if (is_hidden && it->is_directory(code)) it.disable_recursion_pending();
    if (!is_hidden && it->is_regular_file(code)) files.push_back(it->path());
    it.increment(code);
  }
  if (code) {
    throw UserError(fmt::format("cannot list {}: {}", folder.string(), code.message()), "see that it can be read");
  }
  std::sort(files.begin(), files.end());
  return files;
}

PictureInput input_of_folder(const fs::path& folder) {
  std::vector<fs::path> pictures, lines, rows, tars;
  bool has_texts = false;
  for (fs::path& file : files_below(folder)) {
    const std::string ending = ending_of(file), name = lower_case(file.filename().string());
    has_texts |= ending == ".txt" && !lower_case(file.stem().string()).starts_with("readme");
    if (is_picture_name(file)) {
      pictures.push_back(std::move(file));
    } else if (ending == ".jsonl") {
      lines.push_back(std::move(file));
    } else if (ending == ".parquet" || ending == ".arrow") {
      rows.push_back(std::move(file));
    } else if (ending == ".tar" || name.find(".tar.") != std::string::npos) {
      tars.push_back(std::move(file));
    }
  }
  // Lists name the pictures, so they take precedence over picture files.
  if (!lines.empty()) return {PictureForm::kLines, std::move(lines)};
  if (!pictures.empty()) {
    return {has_texts ? PictureForm::kTextFiles : PictureForm::kFileNames, std::move(pictures)};
  }
  if (!rows.empty()) return {PictureForm::kRows, std::move(rows)};
  if (!tars.empty()) return {PictureForm::kTars, std::move(tars)};
  throw UserError(fmt::format("the folder {} holds no pictures, JSON lines, Parquet files or tar archives",
                              folder.string()),
                  "name the folder that holds them");
}

class SourceOfFiles : public PictureSource {
 public:
  SourceOfFiles(PictureInput input, const PictureSourceOptions& options)
      : form_(input.form), files_(std::move(input.files)), options_(options) {}

  std::string kind() const override { return form_text(form_); }
  std::string identity() const override {
    StreamingChecksum sum;
    for (const fs::path& file : files_) {
      std::error_code code;
      const auto time = fs::last_write_time(file, code).time_since_epoch().count();
      sum.update(fmt::format("{}\n{} {}\n", file.string(), fs::file_size(file, code), time));
    }
    return sum.sum128().hex();
  }

 protected:
  const PictureForm form_;
  const std::vector<fs::path> files_;
  const PictureSourceOptions options_;
  size_t next_file_ = 0;
};

class FolderPictures final : public SourceOfFiles {
 public:
  using SourceOfFiles::SourceOfFiles;

  std::optional<CaptionedPicture> next() override {
    if (next_file_ == files_.size()) return std::nullopt;
    const fs::path& file = files_[next_file_++];
    CaptionedPicture picture;
    picture.where = file.string();
    take_file(file, picture);
    if (form_ == PictureForm::kFileNames) {
      std::string words = file.stem().string();
      std::replace(words.begin(), words.end(), '_', ' ');
      take_caption(words, picture);
      return picture;
    }
    fs::path text = file;
    text.replace_extension(".txt");
    std::error_code code;
    if (fs::exists(text, code)) {
      take_caption(read_beginning(text, kMaxCaptionBytes), picture);
    } else if (picture.fault.empty()) {
      picture.lacks_caption = true;
      picture.fault = fmt::format("its caption {} does not exist", text.filename().string());
    }
    return picture;
  }
  void skip(int64_t count) override {
    next_file_ = std::min(files_.size(), next_file_ + static_cast<size_t>(count));
  }
  std::optional<int64_t> total() const override { return std::ssize(files_); }

 private:
  static constexpr size_t kMaxCaptionBytes = size_t{1} << 20;
};

// JSON lines, from files or made from rows of tables.
class RowPictures final : public SourceOfFiles {
 public:
  RowPictures(PictureInput input, const PictureSourceOptions& options) : SourceOfFiles(std::move(input), options) {
    if (form_ != PictureForm::kLines) return;
    int64_t count = 0;
    for (const fs::path& file : files_) {
      JsonRows rows(open_text(file.string()), file.string(), kLongestPictureRow);
      while (rows.next()) ++count;
    }
    total_ = count;
  }

  std::optional<CaptionedPicture> next() override {
    const std::optional<std::string> line = next_line();
    if (!line) return std::nullopt;
    const fs::path& file = files_[next_file_ - 1];
    const std::string where =
        fmt::format("{}{}{}", file.string(), form_ == PictureForm::kLines ? ":" : " row ", rows_->number());
    Json row;
    try {
      row = parse_json(*line, where);
    } catch (const UserError& error) {
      CaptionedPicture broken;
      broken.where = where;
      broken.fault = error.message();
      return broken;
    }
    return picture_of_row(row, file.parent_path(), options_, where);
  }
  void skip(int64_t count) override {
    while (count > 0 && next_line()) --count;
  }
  std::optional<int64_t> total() const override { return total_; }

 private:
  // The next row of any file.
  std::optional<std::string> next_line() {
    while (true) {
      if (rows_) {
        if (std::optional<std::string> row = rows_->next()) return row;
      }
      if (next_file_ == files_.size()) return std::nullopt;
      const std::string path = files_[next_file_++].string();
      rows_.emplace(form_ == PictureForm::kLines ? open_text(path) : open_rows(path, {}, RowBytes::kBase64), path,
                    kLongestPictureRow);
    }
  }

  static constexpr int64_t kLongestPictureRow = int64_t{1} << 29;
  std::optional<JsonRows> rows_;
  std::optional<int64_t> total_;
};

class TarPictures final : public SourceOfFiles {
 public:
  using SourceOfFiles::SourceOfFiles;

  // Consecutive files with the same name up to the first dot are a sample.
  std::optional<CaptionedPicture> next() override {
    if (!ahead_) ahead_ = next_member();
    if (!ahead_) return std::nullopt;
    const std::string key = ahead_->key;
    CaptionedPicture picture;
    picture.where = key;
    std::optional<std::string> text, json;
    for (; ahead_ && ahead_->key == key; ahead_ = next_member()) {
      const std::string ending = lower_case(fs::path(ahead_->file.name).extension().string());
      if (is_picture_name(ahead_->file.name)) {
        picture.bytes = std::move(ahead_->file.bytes);
      } else if (ending == ".txt" || ending == ".caption") {
        text = std::move(ahead_->file.bytes);
      } else if (ending == ".json") {
        json = std::move(ahead_->file.bytes);
      }
    }
    if (picture.bytes.empty()) picture.fault = "it has no picture";
    if (text) {
      take_caption(*text, picture);
    } else if (json) {
      try {
        take_caption(parse_json(*json, key), options_, picture);
      } catch (const UserError& error) {
        if (picture.fault.empty()) picture.fault = error.message();
      }
    } else if (picture.fault.empty()) {
      picture.lacks_caption = true;
      picture.fault = "it has no caption: no .txt, .caption or .json of this name";
    }
    return picture;
  }

 private:
  struct Member {
    std::string key;  // preceded by the archive's path
    TarFile file;
  };

  std::optional<Member> next_member() {
    while (true) {
      if (!archive_) {
        if (next_file_ == files_.size()) return std::nullopt;
        const std::string path = files_[next_file_++].string();
        archive_.emplace(open_text(path), path, kMaxPictureBytes);
      }
      if (std::optional<TarFile> file = archive_->next()) {
        const size_t slash = file->name.rfind('/'), from = slash == std::string::npos ? 0 : slash + 1;
        if (file->name.compare(from, 1, ".") == 0) continue;  // hidden: written by other systems
        const std::string key = file->name.substr(0, file->name.find('.', from));
        return Member{fmt::format("{}: {}", files_[next_file_ - 1].string(), key), std::move(*file)};
      }
      archive_.reset();
    }
  }

  std::optional<TarReader> archive_;
  std::optional<Member> ahead_;
};

}  // namespace

void PictureSource::skip(int64_t count) {
  while (count > 0 && next()) --count;
}

std::unique_ptr<PictureSource> open_picture_source(const PictureSourceOptions& options) {
  std::vector<UserError> errors;
  std::optional<PictureInput> all;
  std::string first;
  if (options.input.empty()) {
    errors.emplace_back("no pictures are named", "name a folder, JSON lines, Parquet or tar files with --input");
  }
  for (const std::string& path : options.input) {
    std::error_code code;
    if (!fs::exists(path, code)) {
      errors.emplace_back(fmt::format("the input {} does not exist", path), "name pictures that are there");
      continue;
    }
    try {
      PictureInput input = fs::is_directory(path, code) ? input_of_folder(path) : input_of_file(path);
      if (!all) {
        all = std::move(input);
        first = path;
      } else if (input.form != all->form) {
        errors.emplace_back(fmt::format("{} is {}, and {} is {}", first, form_text(all->form), path,
                                        form_text(input.form)),
                            "prepare inputs of different kinds into folders of their own");
      } else {
        all->files.insert(all->files.end(), input.files.begin(), input.files.end());
      }
    } catch (const UserError& error) {
      errors.push_back(error);
    }
  }
  throw_errors(errors);
  switch (all->form) {
    case PictureForm::kTextFiles:
    case PictureForm::kFileNames:
      return std::make_unique<FolderPictures>(std::move(*all), options);
    case PictureForm::kLines:
    case PictureForm::kRows:
      return std::make_unique<RowPictures>(std::move(*all), options);
    case PictureForm::kTars:
      return std::make_unique<TarPictures>(std::move(*all), options);
  }
  fail_internal(__FILE__, __LINE__, "form", "no such form");
}

}  // namespace megalith
