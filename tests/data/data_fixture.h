// A temporary folder, data sets made in it, and the message of an expected error.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>

#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "data/indexed_writer.h"

namespace megalith {

class DataTest : public testing::Test {
 protected:
  DataTest() : log_(make_settings()) {
    std::string pattern = (std::filesystem::temp_directory_path() / "megalith_data_XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
  }
  ~DataTest() override { remove_tree(folder_); }

  std::string path(std::string_view name) const { return (folder_ / name).string(); }

  // One sequence a document; token p of document d is 10·d + p.
  std::string write_counting(std::string_view name, const std::vector<int>& sizes, int64_t vocab_size = 1000) {
    IndexedDatasetWriter writer(path(name), token_type_for(vocab_size));
    for (size_t d = 0; d < sizes.size(); ++d) {
      std::vector<int32_t> ids;
      for (int p = 0; p < sizes[d]; ++p) ids.push_back(10 * static_cast<int32_t>(d) + p);
      writer.add_sequence(ids);
      writer.end_document();
    }
    writer.finish();
    return path(name);
  }

  static std::string message_of(const std::function<void()>& action) {
    try {
      action();
    } catch (const UserError& error) {
      return error.message();
    }
    return "no error";
  }

  std::filesystem::path folder_;
  std::string logged_;
  Logger log_;

 private:
  LoggerSettings make_settings() {
    LoggerSettings settings;
    settings.write = [this](std::string_view line) { logged_ += line; };
    return settings;
  }
};

}  // namespace megalith
