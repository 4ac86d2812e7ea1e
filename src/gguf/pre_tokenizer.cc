#include "gguf/pre_tokenizer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/error.h"
#include "core/sha256.h"
#include "tokenizer/known_pattern.h"
#include "tokenizer/pre_tokenizer.h"

namespace megalith {
namespace {

struct Row {
  std::string_view key, name;
};

// By SHA-256 of the ids of kProbe, written as Python writes a list. Source: ggml-org/llama.cpp, conversion/base.py
// (get_vocab_base_pre), for the families that are provided here.
constexpr Row kByDigest[] = {
    {"b6e8e1518dc4305be2fe39c313ed643381c4da5db34a98f6a04c093f8afbe99b", "chatglm-bpe"},  // THUDM/glm-4-9b-chat
    {"81d72c7348a9f0ebe86f23298d37debe0a5e71149e29bd283904c02262b27516", "chatglm-bpe"},  // THUDM/glm-4-9b-chat
    {"a1336059768a55c99a734006ffb02203cd450fed003e9a71886c88acf24fdbc2", "glm4"},  // THUDM/glm-4-9b-hf
    {"9ca2dd618e8afaf09731a7cf6e2105b373ba6a1821559f258b272fe83e6eb902", "glm4"},  // zai-org/GLM-4.5-Air
    {"cdf5f35325780597efd76153d4d1c16778f766173908894c04afc20108536267", "glm4"},  // zai-org/GLM-4.7-Flash
    {"1431a23e583c97432bc230bff598d103ddb5a1f89960c8f1d1051aaa944d0b35", "minerva-7b"},  // Minerva-7B-base-v1.0
    {"81212dc7cdb7e0c1074ca62c5aeab0d43c9f52b8a737be7b12a777c953027890", "kimi-k2"},  // moonshotai/Kimi-K2-Base
    {"d4540891389ea895b53b399da6ac824becc30f2fba0e9ddbb98f92e55ca0e97c", "qwen2"},  // Qwen/Qwen3-Embedding-0.6B
    {"1444df51289cfa8063b96f0e62b1125440111bc79a52003ea14b6eac7016fd5f", "qwen35"},  // openbmb/MiniCPM-V-4_6
    {"0fe1cf6eda062318a1af7270f3331a85c539a01778ff948e24388e949c5282f4", "gpt-2"},  // evilfreelancer/ruGPT3XL
    {"0ef9807a4087ebef797fc749390439009c3b9eda9ad1a097abbe738f486c01e5", "llama-bpe"},  // meta-llama/Meta-Llama-3-8B
    {"049ecf7629871e3041641907f3de7c733e4dbfdc736f57d882ba0b0845599754", "deepseek-llm"},  // deepseek-llm-7b-base
    {"347715f544604f9118bb75ed199f68779f423cabb20db6de6f31b908d04d7821", "deepseek-coder"},  // deepseek-coder-6.7b-base
    {"3ce83efda5659b07b1ad37ca97ca5797ea4285d9b9ab0dc679e4a720c9da7454", "gpt-2"},  // openai-community/gpt2
    {"e636dc30a262dcc0d8c323492e32ae2b70728f4df7dfe9737d9f920a282b8aea", "qwen2"},  // Qwen/Qwen1.5-7B
    {"b6dc8df998e1cfbdc4eac8243701a65afe638679230920b50d6f17d81c098166", "olmo"},  // allenai/OLMo-1.7-7B-hf
    {"a8594e3edff7c29c003940395316294b2c623e09894deebbc65f33f1515df79e", "dbrx"},  // databricks/dbrx-base
    {"c136ed14d01c2745d4f60a9596ae66800e2b61fa45643e72436041855ad4089d", "smaug-bpe"},  // Smaug-Llama-3-70B-Instruct
    {"63b97e4253352e6f357cc59ea5b583e3a680eaeaf2632188c2b952de2588485e", "tekken"},  // mistralai/Mistral-Nemo-Base-2407
    {"855059429035d75a914d1eda9f10a876752e281a054a7a3d421ef0533e5b6249", "smollm"},  // HuggingFaceTB/SmolLM-135M
    {"d4c8f286ea6b520b3d495c4455483cfa2302c0cfcd4be05d781b6a8a0a7cdaf1", "megrez"},  // Infinigence/Megrez-3B-Instruct
    {"877081d19cf6996e2c4ff0e1236341e9b7bde288f5311a56a937f0afbbb3aeb5", "deepseek-v3"},  // deepseek-ai/DeepSeek-V3
    {"b3f499bb4255f8ca19fccd664443283318f2fd2414d5e0b040fbdd0cc195d6c5", "deepseek-r1-qwen"},
    {"ccc2ef013c104be7bae2965776d611e1d7a8a2a9c547dd93a682c9a9fc80352e", "gpt-4o"},  // Xenova/gpt-4o
    {"7dec86086fcc38b66b7bc1575a160ae21cf705be7718b9d5598190d7c12db76f", "superbpe"},  // UW/OLMo2-8B-SuperBPE-t180k
    {"1994ffd01900cfb37395608534236ecd63f2bd5995d6cb1004dda1af50240f15", "trillion"},  // Trillion-7B-preview
    {"d353350c764d8c3b39c763113960e4fb4919bea5fbf208a0e3b22e8469dc7406", "llama4"},  // Llama-4-Scout-17B-16E-Instruct
    {"0e9433cbbb161f89e264eb32e8e64bfe69e834973ffca5d41d3948a604a3e2a3", "pixtral"},  // mistral-community/pixtral-12b
    {"d5f1dd6f980fec569fb218a81a7658ac45fc56b38c5a0adeb1c232fbe04ef5ec", "seed-coder"},  // Seed-Coder-8B-Base
    {"b0a6b1c0bd5998ebd9df08611efde34a4ff03faed45ae09c43e6b31ebd4b94cf", "a.x-4.0"},  // skt/A.X-4.0
    {"f6791d196f87ce6b56a7d234be618e0d58f8cda3549416635b2bebcd22cd95c4", "midm-2.0"},  // Midm-2.0-Base-Instruct
    {"a1e163ecab2e718a4c829d1148b6e86824ec36163bb71941c3dca9cd5ac25756", "mellum"},  // JetBrains/Mellum-4b-base
    {"d30d75d9059f1aa2c19359de71047b3ae408c70875e8a3ccf8c5fba56c9d8af4", "qwen35"},  // Qwen/Qwen3.5-9B-Instruct
};

constexpr std::string_view kProbe =
    "\n \n\n \n\n\n \t \t\t \t\n  \n   \n    \n     \n🚀 (normal) 😶\u200d🌫️ (multiple emojis concatenated) ✅ 🦙🦙 3 33 333 "
    "3333 33333 333333 3333333 33333333 3.3 3..3 3...3 កាន់តែពិសេសអាច😁 ?我想在apple工作1314151天～ ------======= нещо на "
    "Български ''''''```````\"\"\"\"......!!!!!!?????? I've been 'told he's there, 'RE you sure? 'M not sure I'll make "
    "it, 'D you like some tea? We'Ve a'lL";

// Appends the expressions of a pre_tokenizer; "digits" are single ones.
void add_cuts(const Json& pre_tokenizer, const std::string& where, std::vector<std::string>& cuts) {
  const auto type = json_get_or<std::string>(pre_tokenizer, "type", "", where);
  if (type == "Sequence") {
    for (const Json& part : get_member(pre_tokenizer, "pretokenizers", where)) add_cuts(part, where, cuts);
  } else if (type == "Split") {
    const Json& pattern = get_member(pre_tokenizer, "pattern", where);
    cuts.push_back(json_get_or<std::string>(pattern, "Regex", "", where));
  } else if (type == "ByteLevel") {
    if (json_get_or(pre_tokenizer, "use_regex", true, where)) cuts.emplace_back(kGpt2Pattern);
  } else if (type == "Digits" && json_get_or(pre_tokenizer, "individual_digits", false, where)) {
    cuts.emplace_back("digits");
  } else {
    cuts.push_back(type);
  }
}

}  // namespace

std::string gguf_pre_tokenizer(const Tokenizer& tokenizer, const Json& tokenizer_json, const std::string& where) {
  Sha256 digest;
  digest.update(fmt::format("[{}]", fmt::join(tokenizer.encode(kProbe, /*add_special=*/true), ", ")));
  const std::string key = digest.hex();
  const auto known = std::ranges::find(kByDigest, key, &Row::key);
  if (known != std::ranges::end(kByDigest)) return std::string(known->name);

  std::vector<std::string> cuts;
  const Json* pre_tokenizer = find_member(tokenizer_json, "pre_tokenizer", where);
  if (pre_tokenizer != nullptr) add_cuts(*pre_tokenizer, where, cuts);
  // With this name llama.cpp looks a whole word up before it merges.
  const bool takes_whole_words = json_get_or(get_member(tokenizer_json, "model", where), "ignore_merges", false, where);
  const std::string joined = fmt::format("{}", fmt::join(cuts, "\n"));
  if (const auto pattern = find_known_pattern(joined)) {
    switch (*pattern) {
      case KnownPattern::kGpt2:
        return "gpt-2";
      case KnownPattern::kLlama3:
        return takes_whole_words ? "llama-bpe" : "dbrx";
      case KnownPattern::kQwen2:
        return "qwen2";
      case KnownPattern::kO200k:
        return "gpt-4o";
      case KnownPattern::kTekken:
      case KnownPattern::kNumbers:
      case KnownPattern::kCjk:
      case KnownPattern::kDeepSeek:
        break;
    }
  }
  if (joined == fmt::format("digits\n{}", kGpt2Pattern)) return "smollm";
  throw UserError(fmt::format("{}: llama.cpp has no pre-tokenizer that cuts texts as this one ({})", where,
                              cuts.empty() ? "none" : joined),
                  "a model with this tokenizer cannot become GGUF");
}

}  // namespace megalith
