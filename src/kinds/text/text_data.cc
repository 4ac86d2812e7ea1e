#include "kinds/text/text_data.h"

#include <fmt/format.h>

#include <filesystem>

#include "core/checksum.h"
#include "core/error.h"
#include "core/file.h"
#include "data/arrow_source.h"
#include "data/builder_lock.h"
#include "data/prepare.h"
#include "data/prepare_input.h"
#include "data/prepare_state.h"
#include "hub/text_files.h"

namespace megalith {
namespace fs = std::filesystem;
namespace {

std::string tokens_of(const std::string& value, const Resolved& resolved, Logger& log) {
  if (resolved.tokenizer == nullptr) {
    throw UserError(fmt::format("the data path {} names texts, and no tokenizer is named", value),
                    "name one with --tokenizer_model or --tokenizer_type, or prepare them: 'megalith prepare --help'");
  }
  PrepareOptions options;
  const fs::path path = fs::absolute(value).lexically_normal();
  options.input = {path.string()};
  options.append_eod = true;
  const std::vector<PrepareInput> inputs = find_inputs(options.input, false);
  const fs::path folder = resolved.config.data.data_cache_path ? fs::path(*resolved.config.data.data_cache_path)
                                                               : fs::path(path.string() + ".tokens");
  const std::string name =
      fmt::format("{}-{:016x}", path.filename().string(), checksum64(job_of(options, inputs, *resolved.tokenizer)));
  options.output_prefix = (folder / name).string();
  const std::string prefix = options.output_prefix + "_text_document";
  if (fs::exists(prefix + ".idx")) return prefix;
  make_directories(folder);
  const BuilderLock lock(folder / (name + ".lock"),
                         [&] { log.info("another process makes tokens of {}; waiting for it", value); });
  if (fs::exists(prefix + ".idx")) return prefix;
  log.info("{} holds texts: making tokens of them once, in {}", value, prefix);
  const PrepareReport report = prepare_data(options, *resolved.tokenizer, log);
  if (report.num_broken_lines > 0) log.warn("{}", describe(report));
  return prefix;
}

}  // namespace

bool names_texts(const std::string& value) {
  std::error_code code;
  if (fs::exists(value + ".idx", code) || !fs::exists(value, code)) return false;
  return fs::is_directory(value, code) || is_texts_name(value) || is_rows_file(value);
}

void prepare_texts(Resolved& resolved, Logger& log) {
  DataOptions data = with_listed_paths(resolved.derived.data);
  bool has_texts = false;
  std::vector<UserError> errors;
  for (std::vector<std::string>* values :
       {&data.data_path, &data.train_data_path, &data.valid_data_path, &data.test_data_path}) {
    for (std::string& value : *values) {
      if (!names_texts(value)) continue;
      try {
        value = tokens_of(value, resolved, log);
        has_texts = true;
      } catch (const UserError& error) {
        errors.push_back(error);
      }
    }
  }
  throw_if_any(errors);
  if (has_texts) resolved.derived.data = std::move(data);
}

}  // namespace megalith
