// WikiText-103 as AMD's fine-tuning benchmarks read it: an article a row. The hub's data set has a line a row.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "config/yaml_document.h"
#include "core/log.h"

namespace megalith {

inline constexpr const char *kWikitextFile = "wikitext_train.json", *kWikitextColumn = "input";
inline constexpr const char* kWikitextRepo = "Salesforce/wikitext";
inline constexpr const char* kWikitextSubset = "wikitext-103-raw-v1";

// Joins consecutive lines into articles. An article begins with its title, " = Title = ", after an empty line; section
// titles have more marks.
class ArticleMaker {
 public:
  explicit ArticleMaker(std::function<void(const std::string& article)> take) : take_(std::move(take)) {}

  void add(const std::string& line);
  void finish();

 private:
  std::function<void(const std::string&)> take_;
  std::string article_;
  bool is_after_empty_ = true;
};

// Writes the articles in these files of rows (column `text`) as JSON lines {"input": …}; returns their number.
// UserError for files that cannot be read.
int64_t write_articles(const std::vector<std::string>& files, const std::filesystem::path& into);

// Writes the training articles to `into`, from the hub or its cache, unless they are there. UserError if they cannot be
// had.
void ensure_wikitext(const std::filesystem::path& into, const EnvironmentMap& environment, Logger& log);

}  // namespace megalith
