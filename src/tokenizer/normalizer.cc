// Normalizers; see normalizer.h. Unicode normal forms come from utf8proc.
#include "tokenizer/normalizer.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/error.h"
#include "core/json.h"

namespace megalith {
namespace {

class UnicodeForm final : public Normalizer {
 public:
  explicit UnicodeForm(int flags) : flags_(flags) {}

  std::string normalize(std::string_view text) const override {
    // ASCII is the same in every form; so are Latin-1 letters in NFC, but telling them apart costs more than it saves.
    if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<signed char>(c) >= 0; })) {
      return std::string(text);
    }
    utf8proc_uint8_t* result = nullptr;
    const utf8proc_ssize_t size =
        utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                     &result, static_cast<utf8proc_option_t>(flags_));
    MEGALITH_CHECK(size >= 0, "utf8proc: {}", utf8proc_errmsg(size));
    std::string out(reinterpret_cast<const char*>(result), static_cast<size_t>(size));
    std::free(result);
    return out;
  }

 private:
  int flags_;
};

class NormalizerSequence final : public Normalizer {
 public:
  explicit NormalizerSequence(std::vector<std::unique_ptr<Normalizer>> steps) : steps_(std::move(steps)) {}

  std::string normalize(std::string_view text) const override {
    std::string out(text);
    for (const auto& step : steps_) out = step->normalize(out);
    return out;
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> steps_;
};

}  // namespace

std::unique_ptr<Normalizer> make_normalizer(const Json& json, std::string_view where) {
  if (json.is_null()) return nullptr;
  const auto type = json_get<std::string>(json, "type", where);
  constexpr int kCompose = UTF8PROC_STABLE | UTF8PROC_COMPOSE, kDecompose = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;
  if (type == "NFC") return std::make_unique<UnicodeForm>(kCompose);
  if (type == "NFD") return std::make_unique<UnicodeForm>(kDecompose);
  if (type == "NFKC") return std::make_unique<UnicodeForm>(kCompose | UTF8PROC_COMPAT);
  if (type == "NFKD") return std::make_unique<UnicodeForm>(kDecompose | UTF8PROC_COMPAT);
  if (type == "Sequence") {
    std::vector<std::unique_ptr<Normalizer>> steps;
    for (const Json& step : get_member(json, "normalizers", where)) {
      if (auto normalizer = make_normalizer(step, where)) steps.push_back(std::move(normalizer));
    }
    if (steps.empty()) return nullptr;
    return std::make_unique<NormalizerSequence>(std::move(steps));
  }
  throw UserError(fmt::format("{}: normalizer \"{}\" is not supported", where, type),
                  "supported are NFC, NFD, NFKC, NFKD and Sequence");
}

}  // namespace megalith
