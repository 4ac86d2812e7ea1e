// Instruction data: rows of every form through templates to tokens and masks, and the files that hold those.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/file.h"
#include "core/json.h"
#include "fuzz/mutate.h"
#include "fuzz/target.h"
#include "kinds/text/sft_packs.h"
#include "kinds/text/sft_reference.h"
#include "kinds/text/sft_set.h"

namespace megalith::fuzz {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRows[] = {
    R"({"messages":[{"role":"system","content":"s"},{"role":"user","content":"q"},{"role":"assistant","content":
"Ä🦙"}]})",
    R"({"conversations":[{"from":"human","value":"q"},{"from":"gpt","value":"a"}],"tools":null})",
    R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":null,"tool_calls":[{"function":
{"name":"f","arguments":{"x":1}}}]},{"role":"tool","content":"7"},{"role":"assistant","content":"a"}]})",
    R"({"instruction":"i","input":"x","output":"o"})",
    R"({"prompt":"p","completion":"c"})",
    R"({"prompt":"p","chosen":"c","rejected":"r"})",
    R"({"prompt":[{"role":"user","content":"q"}],"chosen":[{"role":"assistant","content":"a"}],"rejected":[
{"role":"assistant","content":"b"}]})",
    R"({"text":"t"})",
    R"({"input_ids":[1,2,3],"labels":[-100,2,3],"attention_mask":[1,1,1]})",
    R"({"input":{"messages":[{"role":"user","content":"q"}],"tools":[],"parallel_tool_calls":false},"preferred_output":[
{"role":"assistant","content":"a"}],"non_preferred_output":[{"role":"assistant","content":"b"}]})",
    R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":null,"function_call":{"name":"f",
"arguments":"{}"}},{"role":"function","name":"f","content":"7"},{"role":"assistant","content":"a"}]})",
    R"({"prompt":[{"role":"user","content":"q"}],"completion":[{"role":"assistant","content":"a"}]})"};

// A line, or a list of rows.
Target sft_rows(const Scratch& scratch) {
  Target target{"sft_rows",
                {},
                {"messages", "conversations", "role", "content", "from", "value", "user", "assistant", "human",
                 "gpt", "tool", "chosen", "rejected", "prompt", "null", "[]", "{}", "tool_calls"},
                {},
                {}};
  for (const char* row : kRows) {
    std::string line = row;
    std::erase(line, '\n');
    target.seeds.push_back(line);
    target.seeds.push_back("[" + line + ",\n" + line + "]");
  }
  const fs::path templates = fs::path(MEGALITH_SOURCE_DIR) / "tests/tokenizer/data/chat_templates";
  fs::create_directories(scratch.path("model"));
  scratch.put("model/chat_template.jinja", read_file(templates / "chatml.jinja"));
  const std::shared_ptr<const Tokenizer> tokenizer =
      make_tokenizer({.tokenizer_type = std::string("ByteTokenizer")});
  const std::string model = scratch.path("model");
  target.run = [&scratch, tokenizer, model](std::string_view input) {
    const std::string path = scratch.put("rows.jsonl", input);
    const SftOptions options;
    const SftEncoder encoder(*tokenizer, model, options);
    SftReader reader({path}, std::nullopt, std::nullopt);
    SftTally tally(options);
    encode_sft_rows(reader, encoder, tally, [](const SftSample& sample, const SftLine&, bool) {
      require(sample.tokens.size() == sample.weights.size(), "a weight for each token");
      require(sample.rejected_begin <= sample.tokens.size(), "the rejected answer begins within the tokens");
      require(sample.num_counted() <= std::ssize(sample.tokens), "no more than the tokens count");
    });
    tally.check();
  };
  target.mutate = [words = target.words](const std::string& input, Random& random) {
    return random() % 4 == 0 ? damaged_bytes(input, words, random) : damaged_json(input, words, random);
  };
  return target;
}

// Tokens, mask, report and reference, in the order of `files`.
Target sft_files(const Scratch& scratch) {
  static constexpr const char* kEndings[] = {".json", ".idx", ".bin", "_mask.idx", "_mask.bin", "_r.idx", "_r.bin"};
  Target target{"sft_files", {}, {"form", "samples", "-1", "1e99", "longest"}, {}, {}};
  const std::string prefix = scratch.path("good");
  const std::shared_ptr<const Tokenizer> tokenizer =
      make_tokenizer({.tokenizer_type = std::string("ByteTokenizer")});
  for (const char* row : {kRows[4], kRows[5]}) {
    const std::string path = scratch.put("good.jsonl", row);
    const SftOptions options;
    const SftEncoder encoder(*tokenizer, "", options);
    SftReader reader({path}, std::nullopt, std::nullopt);
    Logger log({.level = LogLevel::kSilent});
    prepare_sft(reader, encoder, options, tokenizer->vocab_size(), prefix, log);
    SftReferenceTable(SftSet(prefix)).write(prefix + "_r");
    std::vector<std::string> files;
    for (const char* ending : kEndings) files.push_back(read_file(prefix + ending));
    target.seeds.push_back(joined(files));
  }
  target.run = [&scratch](std::string_view input) {
    const auto files = divided(input, std::size(kEndings));
    for (size_t i = 0; i < files.size(); ++i) scratch.put(std::string("s") + kEndings[i], files[i]);
    const SftSet set(scratch.path("s"));
    const SftReference reference(scratch.path("s_r"), set);
    std::vector<int64_t> tokens;
    std::vector<uint8_t> weights;
    std::vector<float> log_probs;
    for (int64_t i = 0; i < set.num_sequences(); ++i) {
      const int64_t length = set.sequence_length(i);
      if (length > 100'000) return;
      tokens.resize(static_cast<size_t>(length));
      weights.resize(tokens.size());
      log_probs.resize(tokens.size());
      set.read(i, 0, length, tokens.data(), weights.data());
      reference.read(i, 0, length, log_probs.data());
    }
    const SftOptions options{.enable_packed_sequences = true};
    SftPacks(0, set.num_samples(), [&](int64_t i) { return set.length(i); }, 1 << 20, true, options);
  };
  target.mutate = [words = target.words](const std::string& input, Random& random) {
    std::vector<std::string> parts = divided(input, std::size(kEndings));
    std::string& part = parts[random() % parts.size()];
    part = &part == parts.data() ? damaged_json(part, words, random) : damaged_bytes(part, {}, random);
    return joined(parts);
  };
  return target;
}

}  // namespace

std::vector<Target> sft_targets(const Scratch& scratch) { return {sft_rows(scratch), sft_files(scratch)}; }

}  // namespace megalith::fuzz
