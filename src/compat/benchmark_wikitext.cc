// See benchmark_wikitext.h. Source: Merity et al. 2016, arXiv:1609.07843; the data set's card on the hub.
#include "compat/benchmark_wikitext.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json.h"
#include "core/strings.h"
#include "data/arrow_source.h"
#include "hub/texts.h"

namespace megalith {
namespace {

namespace fs = std::filesystem;

bool is_article_title(std::string_view line) {
  const std::string_view text = trim(line);
  return text.size() > 4 && text.starts_with("= ") && text.ends_with(" =") && !text.starts_with("= =") &&
         !text.ends_with("= =");
}

template <typename Take>
void for_each_line(TextSource& source, const Take& take) {
  std::array<char, 1 << 16> block{};
  std::string pending;
  for (;;) {
    const size_t count = source.read(block);
    pending.append(block.data(), count);
    size_t begin = 0;
    for (size_t end = pending.find('\n'); end != std::string::npos; end = pending.find('\n', begin)) {
      take(pending.substr(begin, end - begin));
      begin = end + 1;
    }
    pending.erase(0, begin);
    if (count == 0) break;
  }
  if (!pending.empty()) take(pending);
}

}  // namespace

void ArticleMaker::add(const std::string& line) {
  if (is_after_empty_ && is_article_title(line)) finish();
  is_after_empty_ = trim(line).empty();
  if (article_.empty() && is_after_empty_) return;
  article_ += line;
  if (!article_.ends_with('\n')) article_ += '\n';
}

void ArticleMaker::finish() {
  if (!trim(article_).empty()) take_(article_);
  article_.clear();
}

int64_t write_articles(const std::vector<std::string>& files, const fs::path& into) {
  const fs::path part = into.string() + ".part";
  std::ofstream out(part, std::ios::binary);
  int64_t num_articles = 0;
  ArticleMaker articles([&](const std::string& article) {
    out << dump_json(OrderedJson{{kWikitextColumn, article}}) << '\n';
    ++num_articles;
  });
  for (const std::string& file : files) {
    const std::unique_ptr<TextSource> source = open_rows(file, {"text"});
    for_each_line(*source, [&](const std::string& row) {
      articles.add(json_as<std::string>(parse_json(row, file)["text"], file));
    });
  }
  articles.finish();
  out.close();
  if (!out) {
    throw UserError(fmt::format("{} cannot be written", part.string()), "start where there is room and permission");
  }
  fs::rename(part, into);
  return num_articles;
}

void ensure_wikitext(const fs::path& into, const EnvironmentMap& environment, Logger& log) {
  std::error_code error;
  if (fs::exists(into, error)) return;
  const std::string name = fmt::format("{}/{}", kWikitextRepo, kWikitextSubset);
  std::vector<std::string> files = resolve_hub_texts("WikiText", name, environment, HubOptions(), log);
  std::erase_if(files,
                [](const std::string& file) { return !fs::path(file).filename().string().starts_with("train"); });
  if (files.empty()) throw UserError(fmt::format("{} has no training files", name), "name rows with TRAIN_FILE=FILE");
  std::sort(files.begin(), files.end());
  const int64_t count = write_articles(files, into);
  log.info("{}: {} articles of {}", into.string(), count, name);
}

}  // namespace megalith
