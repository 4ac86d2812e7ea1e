// Tokenizer files of every format, and text.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/error.h"
#include "core/file.h"
#include "data/sentences.h"
#include "fuzz/coverage.h"
#include "fuzz/mutate.h"
#include "fuzz/target.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/jinja_template.h"
#include "tokenizer/small_files.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

namespace megalith::fuzz {
namespace {

constexpr std::string_view kText =
    "The quick Größe 日本 🦙 don't 123 <s>[MASK] <|endoftext|> \xFF\n\n  x▁▁a\u00a0ÀE\u0301 ひらカナ漢";

// Most components, small enough that damage often hits something that counts.
const std::string kManyParts = R"json({"added_tokens":[{"id":0,"content":"<s>","special":true},
  {"id":9,"content":"[MASK]","lstrip":true,"normalized":true,"single_word":true}],
 "normalizer":{"type":"Sequence","normalizers":[{"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":true,
  "strip_accents":null,"lowercase":true},{"type":"Strip","strip_left":true,"strip_right":true},{"type":"Replace",
  "pattern":{"Regex":"x+"},"content":"y"},{"type":"Prepend","prepend":"_"},{"type":"NFKC"},{"type":"Nmt"},
  {"type":"Precompiled","precompiled_charsmap":"DAAAAAABAAABAAAAAgAAAGEAYgA="}]},
 "pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"\\s+|\\p{L}+(?=\\d)"},
  "behavior":"MergedWithNext","invert":false},{"type":"Metaspace","replacement":"▁","prepend_scheme":"first",
  "split":true},{"type":"Digits","individual_digits":true},{"type":"Punctuation","behavior":"Contiguous"}]},
 "model":{"type":"BPE","unk_token":"<s>","fuse_unk":true,"byte_fallback":true,"vocab":{"<s>":0,"a":1,"b":2,"ab":3,"▁":4,
  "▁a":5,"<0xE2>":6},"merges":[["a","b"],["▁","a"]]},
 "post_processor":{"type":"Sequence","processors":[{"type":"ByteLevel"},{"type":"TemplateProcessing","single":[
  {"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],"special_tokens":{"<s>":{"id":"<s>",
  "ids":[0],"tokens":["<s>"]}}}]},
 "decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},
  {"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]}})json";
const std::string kUnigram =
    R"({"model":{"type":"Unigram","unk_id":0,"byte_fallback":true,"vocab":[["<unk>",0],["a",-1],
  ["▁a",-2.5],["日",-3]]},"pre_tokenizer":{"type":"WhitespaceSplit"},"decoder":{"type":"Metaspace","replacement":"▁"}})";
const std::string kWordPiece = R"({"model":{"type":"WordPiece","unk_token":"[UNK]","max_input_chars_per_word":100,
  "continuing_subword_prefix":"##","vocab":{"[UNK]":0,"the":1,"##ick":2,"[CLS]":3,"[SEP]":4}},
  "pre_tokenizer":{"type":"BertPreTokenizer"},"decoder":{"type":"WordPiece","prefix":"##","cleanup":true},
  "post_processor":{"type":"BertProcessing","sep":["[SEP]",4],"cls":["[CLS]",3]}})";
const std::string kWordLevel = R"({"model":{"type":"WordLevel","unk_token":"<unk>","vocab":{"<unk>":0,"The":1}},
  "pre_tokenizer":{"type":"CharDelimiterSplit","delimiter":" "},"normalizer":{"type":"Lowercase"},
  "decoder":{"type":"CTC","pad_token":"<pad>","word_delimiter_token":"|","cleanup":true},
  "post_processor":{"type":"RobertaProcessing","sep":["</s>",0],"cls":["<s>",0],"trim_offsets":true,
  "add_prefix_space":true},"truncation":null,"padding":null})";
const std::string kByteLevel =
    R"({"model":{"type":"BPE","dropout":null,"continuing_subword_prefix":"","ignore_merges":true,
  "end_of_word_suffix":"</w>","vocab":{"a":0,"b</w>":1,"Ġ":2,"Ġa":3,"ab</w>":4},"merges":["Ġ a","a b</w>"]},
  "pre_tokenizer":{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true},
  "normalizer":{"type":"StripAccents"},"decoder":{"type":"BPEDecoder","suffix":"</w>"}})";

const std::vector<std::string> kComponents = {"NFC",
                                              "NFD",
                                              "NFKD",
                                              "Lowercase",
                                              "ByteLevel",
                                              "Whitespace",
                                              "WhitespaceSplit",
                                              "UnicodeScripts",
                                              "FixedLength",
                                              "Removed",
                                              "Isolated",
                                              "MergedWithPrevious",
                                              "MergedWithNext",
                                              "Contiguous",
                                              "always",
                                              "never",
                                              "first",
                                              "Regex",
                                              "String",
                                              "invert",
                                              "pattern",
                                              "behavior",
                                              "individual_digits",
                                              "(?i:'s|'t)|\\p{N}{1,3}| ?[^\\s\\p{L}]+",
                                              "(?=",
                                              "[[a-z]&&[^b]]",
                                              "(a|b)*c",
                                              "\\p{Han}",
                                              "$A",
                                              "$B:1",
                                              "ids",
                                              "tokens",
                                              "type_id",
                                              "unk_id",
                                              "max_input_chars_per_word"};

// Everything one can do with a tokenizer.
void use(const Tokenizer& tokenizer, std::string_view text) {
  require(tokenizer.vocab_size() >= 0, "a size is not negative");
  for (const bool add_special : {false, true}) {
    const std::vector<int32_t> ids = tokenizer.encode(text, add_special);
    for (const int32_t id : ids) require(id >= 0 && id < tokenizer.vocab_size(), "ids are below the vocabulary's size");
    require(is_valid_utf8(tokenizer.decode(ids, add_special)), "decoded text is valid UTF-8");
    StreamingDecoder decoder(tokenizer, add_special);
    for (size_t i = 0; i < ids.size() && i < 200; ++i) decoder.push(ids[i]);
    decoder.finish();
  }
  const std::vector<int32_t> odd = {-1, INT32_MAX, INT32_MIN, 0, 1, 2, 3, 4, 5, 6, 255, 256};
  require(is_valid_utf8(tokenizer.decode(odd)), "decoded text is valid UTF-8");
  for (const int32_t id : odd) tokenizer.is_special(id);
}

std::string read_small(const std::string& name) {
  return read_file(std::filesystem::path(MEGALITH_SOURCE_DIR) / "tests/tokenizer/data" / name / "tokenizer.json");
}

std::string small_charsmap() {  // the trie holds "a"; its replacement is "b"
  std::string charsmap("\x10\0\0\0", 4);
  for (const uint32_t unit : {0x12u, 0x500u, 0x61u, 0x80000000u}) {
    charsmap.append(reinterpret_cast<const char*>(&unit), 4);
  }
  return charsmap + "b";
}

std::vector<std::string> sentencepiece_models() {
  using test::sentencepiece_model;
  std::vector<test::SmallPiece> with_bytes = {{"▁", -1, 1}, {"[MASK]", 0, 4}};
  for (int byte = 0; byte < 256; ++byte) with_bytes.push_back({fmt::format("<0x{:02X}>", byte), 0, 6});
  return {sentencepiece_model(1, {{"▁", -1, 1}, {"▁a", -2, 1}, {"a", -3, 1}, {"x", -1, 4}}, small_charsmap()),
          sentencepiece_model(2, {{"▁", -1, 1}, {"▁a", -2, 1}, {"a", -3, 5}, {"▁ab", -1, 5}}),
          sentencepiece_model(2, with_bytes, "", true)};
}

Target tokenizer_json(const Scratch& scratch) {
  Target target{"tokenizer_json", {kManyParts, kUnigram, kWordPiece, kWordLevel, kByteLevel}, {}, {}, {}};
  target.words = words_of_json(target.seeds);
  target.words.insert(target.words.end(), kComponents.begin(), kComponents.end());
  for (const char* name : {"gpt2", "llama3", "qwen2", "deepseek"}) target.seeds.push_back(read_small(name));
  target.run = [&scratch](std::string_view input) {
    use(*make_tokenizer({.tokenizer_model = scratch.put("tokenizer.json", input)}), kText);
  };
  target.mutate = [words = target.words](const std::string& input, Random& random) {
    return damaged_json(input, words, random);
  };
  return target;
}

Target sentencepiece(const Scratch& scratch) {
  Target target{"sentencepiece_model", sentencepiece_models(), {"▁", "<0x00>", "\x0A\x03", "\x15", "\x1A"}, {}, {}};
  target.run = [&scratch](std::string_view input) {
    const std::string file = scratch.put("sp.model", input);
    std::optional<UserError> refusal;
    for (const char* type : {"Llama2Tokenizer", "SentencePieceTokenizer", "GPTSentencePieceTokenizer"}) {
      try {
        use(*make_tokenizer({.tokenizer_type = type, .tokenizer_model = file, .vocab_extra_ids = 0}), kText);
      } catch (const UserError& error) {
        refusal = error;
      }
    }
    if (refusal) throw *refusal;
  };
  return target;
}

Target tiktoken(const Scratch& scratch) {
  Target target{"tiktoken_model", {test::tiktoken_lines()}, {"AA== 7", "YWI= 256", " ", "YWI=\t3", "ICAg 300"}, {}, {}};
  target.run = [&scratch](std::string_view input) {
    const std::string file = scratch.put("llama3.model", input);
    use(*make_tokenizer({.tokenizer_type = "Llama3Tokenizer", .tokenizer_model = file}), kText);
  };
  target.mutate = [words = target.words](const std::string& input, Random& random) {
    return damaged_lines(input, words, random);
  };
  return target;
}

Target tekken(const Scratch& scratch) {
  std::string vocabulary;
  for (int rank = 0; rank < 258; ++rank) {
    const std::string bytes = rank < 256 ? std::string(1, static_cast<char>(rank)) : rank == 256 ? "ab" : " a";
    vocabulary += (rank == 0 ? "" : ",") + ("{\"rank\":" + std::to_string(rank)) + ",\"token_bytes\":\"" +
                  test::base64(bytes) + "\",\"token_str\":null}";
  }
  Target target{"tekken_json", {}, {}, {}, {}};
  target.seeds = {
      R"({"config":{"pattern":"[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|\\s+|.","num_vocab_tokens":258,)"
      R"("default_vocab_size":268,"default_num_special_tokens":10,"version":"v3"},"vocab":[)" +
      vocabulary +
      R"(],"special_tokens":[{"rank":0,"token_str":"<unk>","is_control":true},)"
      R"({"rank":1,"token_str":"<s>","is_control":true},{"rank":2,"token_str":"</s>","is_control":true}]})"};
  target.words = {"rank", "token_bytes", "token_str", "is_control", "config", "pattern", "YWI="};
  target.run = [&scratch](std::string_view input) {
    use(*make_tokenizer({.tokenizer_model = scratch.put("tekken.json", input)}), kText);
  };
  target.mutate = [words = target.words](const std::string& input, Random& random) {
    return damaged_json(input, words, random);
  };
  return target;
}

Target vocab_and_merges(const Scratch& scratch) {
  Target target{"vocab_and_merges",
                {joined({R"({"a":0,"b":1,"ab":2,"<|endoftext|>":3,"Ġ":4,"Ġa":5})", "#version: 0.2\na b\nĠ a\n"})},
                {"a b", "Ġ", "ab", "#version", "tokenizer_class", "GPT2Tokenizer", "Qwen2Tokenizer", "CLIPTokenizer",
                 "bos_token", "additional_special_tokens", std::string(kBetweenFiles)},
                {},
                {}};
  target.seeds.push_back(
      target.seeds[0] + std::string(kBetweenFiles) +
      R"({"tokenizer_class":"GPT2TokenizerFast","add_bos_token":true,"pad_token":{"content":"<pad>"},)"
      R"("added_tokens_decoder":{"7":{"content":"<x>","special":false,"lstrip":true}}})");
  target.run = [&scratch](std::string_view input) {
    const auto files = divided(input, 3);
    if (!files[2].empty()) {
      scratch.put("folder/vocab.json", files[0]);
      scratch.put("folder/merges.txt", files[1]);
      scratch.put("folder/tokenizer_config.json", files[2]);
      use(*make_tokenizer({.tokenizer_model = scratch.path("folder").string()}), kText);
      return;
    }
    use(*make_tokenizer({.tokenizer_type = "GPT2BPETokenizer",
                         .vocab_file = scratch.put("vocab.json", files[0]),
                         .merge_file = scratch.put("merges.txt", files[1])}),
        kText);
  };
  target.mutate = [words = target.words](const std::string& input, Random& random) {
    auto files = divided(input, 3);
    if (files[2].empty()) files.pop_back();
    std::string& file = files[below(files.size(), random)];
    file = &file == &files[1] ? damaged_lines(file, words, random) : damaged_json(file, words, random);
    return joined(files);
  };
  return target;
}

Target word_piece_vocab(const Scratch& scratch) {
  Target target{"word_piece_vocab",
                {"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\n##ick\nquick\n"},
                {"##", "[BOS]", "<extra_id_0>", "\r", "\t"},
                {},
                {}};
  target.run = [&scratch](std::string_view input) {
    const std::string file = scratch.put("vocab.txt", input);
    for (const char* type : {"BertWordPieceLowerCase", "BertWordPieceCase"}) {
      use(*make_tokenizer({.tokenizer_type = type, .vocab_file = file, .vocab_extra_ids = 2}), kText);
    }
  };
  target.mutate = [words = target.words](const std::string& input, Random& random) {
    return damaged_lines(input, words, random);
  };
  return target;
}

// Good tokenizers and damaged text; the first byte chooses the tokenizer.
Target text(const Scratch& scratch) {
  auto tokenizers = std::make_shared<std::vector<std::unique_ptr<Tokenizer>>>();
  const auto open = [&](const std::string& name, const std::string& content) {
    tokenizers->push_back(make_tokenizer({.tokenizer_model = scratch.put(name, content)}));
  };
  for (const char* name : {"gpt2", "llama3", "qwen2", "deepseek"}) open("text/tokenizer.json", read_small(name));
  for (const std::string& content : {kManyParts, kUnigram, kWordPiece, kWordLevel, kByteLevel}) {
    open("text/tokenizer.json", content);
  }
  for (const std::string& content : sentencepiece_models()) open("text/sp.model", content);
  open("text/llama3.model", test::tiktoken_lines());
  tokenizers->push_back(make_byte_tokenizer());
  tokenizers->push_back(make_null_tokenizer(1000));
  Target target{
      "text", {}, {"<|endoftext|>", "[MASK]", "<s>", "'ll", "Dr. ", "No. 5", "e.g.", "。", "▁", "\u0301"}, {}, {}};
  for (size_t i = 0; i + 1 < tokenizers->size(); ++i) target.seeds.push_back(static_cast<char>(i) + std::string(kText));
  target.run = [tokenizers](std::string_view input) {
    if (input.empty()) return;
    use(*(*tokenizers)[static_cast<uint8_t>(input[0]) % tokenizers->size()], input.substr(1));
    const std::string valid = replace_invalid_utf8(input.substr(1));
    for (const bool keep_newlines : {false, true}) {
      for (const std::string_view sentence : split_sentences(valid, keep_newlines)) {
        require(is_valid_utf8(sentence) && !sentence.empty(), "a sentence is a piece of the text");
      }
    }
  };
  return target;
}

// A template that does a few things in a row with much. Damage by itself seldom makes one that can be rendered.
std::string laborious_template(Random& random) {
  static const std::vector<std::string> kValues = {"'aB ' * 9999",
                                                   "'\\xe4\\x01' * 5000",
                                                   "'a\\n' * 5000",
                                                   "'<a>' * 5000",
                                                   "['aB ', 'b'] * 500",
                                                   "range(999)|list",
                                                   "messages * 50",
                                                   "[messages[0]] * 200",
                                                   "'1' * 4000",
                                                   "[range(99), 'a' * 999] * 9",
                                                   "messages[0].items()",
                                                   "[[['x'] * 9] * 9] * 9",
                                                   "{'B': 'x' * 9999, 'a': range(999)}"};
  static const std::vector<std::string> kSteps = {"|upper",
                                                  "|title",
                                                  "|capitalize",
                                                  "|lower",
                                                  "|trim",
                                                  "|trim('aB')",
                                                  "|string",
                                                  "|tojson",
                                                  "|tojson(indent=64)",
                                                  "|join",
                                                  "|join('ab' * 99)",
                                                  "|list",
                                                  "|length",
                                                  "|reverse",
                                                  "|unique",
                                                  "|indent",
                                                  "|indent(99, true, true)",
                                                  "|replace('a', 'bcd')",
                                                  "|replace('', '-')",
                                                  "|first",
                                                  "|last",
                                                  "|int(7)",
                                                  "|float",
                                                  "|map('upper')",
                                                  "|map('reverse')",
                                                  "|map(attribute='role')",
                                                  "|select('in', x)",
                                                  "|selectattr('role', 'eq', 'user')",
                                                  "|reject",
                                                  "|items",
                                                  "|dictsort",
                                                  ".split()",
                                                  ".split('a')",
                                                  ".split('B', 9)",
                                                  ".rsplit('a')",
                                                  ".splitlines()",
                                                  ".find('aB aC')",
                                                  ".rfind('b' ~ 'a' * 500)",
                                                  ".find('a' * 99 ~ 'b')",
                                                  ".count('a')",
                                                  ".strip('aB \\n')",
                                                  ".startswith(x)",
                                                  ".endswith('b')",
                                                  ".isdigit()",
                                                  ".isspace()",
                                                  ".join(['a'] * 99)",
                                                  ".removeprefix('a')",
                                                  "[::-1]",
                                                  "[1:]",
                                                  "[-1]",
                                                  "[:-1:2]",
                                                  " * 9",
                                                  " ~ x",
                                                  " + x",
                                                  " == x",
                                                  " < x",
                                                  " in [x] * 9",
                                                  ".items()|list",
                                                  ".values()|list",
                                                  ".get('a')",
                                                  ".index('b')",
                                                  " is lower",
                                                  " is upper"};
  const auto any = [&](const std::vector<std::string>& of) { return of[below(of.size(), random)]; };
  std::string value = "x";
  for (size_t i = 0; i <= random() % 3; ++i) value = "(" + value + any(kSteps) + ")";
  return "{% set x = " + any(kValues) + " %}{% for i in range(" + std::to_string(1 << random() % 8) +
         ") %}{% set y = " + value + " %}{% endfor %}";
}

// Chat templates: good ones, and damaged ones, with a conversation that has everything. What a template costs is what
// it counts: no more code is executed, and no more memory is there, than its units and bytes stand for.
Target chat_template(const Scratch& /*scratch*/) {
  Target target{"chat_template", {}, {}, {}, {}};
  const std::filesystem::path folder =
      std::filesystem::path(MEGALITH_SOURCE_DIR) / "tests/tokenizer/data/chat_templates";
  for (const char* name : {"chatml", "headers", "instructions", "marked", "selected", "turns"}) {
    target.seeds.push_back(read_file(folder / (std::string(name) + ".jinja")));
  }
  target.seeds.emplace_back(
      "{{ 1 + 2 * 3 // 4 % 5 ** 2 - -1 }}{{ 'aXb'.replace('X', 'é').upper()[::-1] ~ [1, {'a': none}] * 2 }}"
      "{% set a, b = messages[0].items()|first %}{% set t %}x{{ a|indent(2) }}{% endset %}{{ "
      "range(3)|map('string')|join }}");
  target.seeds.emplace_back(
      "{% set ns = namespace(x='ab ', l=[]) %}{% for i in range(5) %}{% set ns.x = ns.x ~ ns.x.replace('a', 'ä') %}"
      "{% set ns.l = ns.l + [ns.x.split()|map('title')|unique|join('-')|tojson, loop] %}{% endfor %}"
      "{{ ns.x.find('bb') ~ ns.x.rsplit('b', 3)|string|length ~ ns.x[::-1].strip('a b')|indent(9)|length }}"
      "{{ {'b': 1, 'A': ns.l|length}|dictsort ~ (ns.l == ns.l[:]) ~ (ns.x in ns.l) ~ ns.x.count('a') }}");
  target.words = {"{{",
                  "}}",
                  "{%",
                  "%}",
                  "{#",
                  "#}",
                  "-%}",
                  " for x in messages ",
                  " if ",
                  " else ",
                  "endfor",
                  "endif",
                  "macro",
                  "namespace(",
                  "messages",
                  "message.content",
                  "|tojson(indent=",
                  "|selectattr('role', 'eq', '",
                  "loop.index0",
                  " is string",
                  " not in ",
                  "[-9:]",
                  "[::-1]",
                  ".split('",
                  " ~ ",
                  " ** ",
                  "999999999999",
                  "\u00e9",
                  "'",
                  "\"",
                  "(",
                  "]",
                  "range(",
                  "range(999)",
                  " * 9999",
                  ".replace('a', ",
                  ".split()",
                  ".find(",
                  ".rsplit(",
                  "|map('",
                  "|unique",
                  "|dictsort",
                  "|join(",
                  "|string",
                  "|indent(",
                  ".title()",
                  ".strip('",
                  " in ",
                  " for i in range(999) ",
                  "set ns.x = ns.x ~ ns.x ",
                  "namespace(x=",
                  "|length",
                  "add_generation_prompt",
                  "raise_exception("};
  const JinjaValue variables = JinjaValue::from_json(parse_ordered_json(
      R"({"bos_token":"<s>","eos_token":"</s>","add_generation_prompt":true,"tools":[{"type":"function","function":
      {"name":"f","parameters":{"a":[1,2.5,null,true]}}}],"messages":[{"role":"system","content":"Be kind. ÄÖ🦙"},
      {"role":"user","content":" Hi\n"},{"role":"assistant","content":null,"tool_calls":[{"id":"abcdefghi","function":
      {"name":"f","arguments":{"x":"</think>"}}}]},{"role":"tool","content":"7","tool_call_id":"abcdefghi"},
      {"role":"assistant","content":"Bye."}]})",
      "variables"));
  // Templates that know no tools refuse such a conversation.
  const JinjaValue plain = JinjaValue::from_json(parse_ordered_json(
      R"({"bos_token":"<s>","eos_token":"</s>","add_generation_prompt":true,"messages":[
      {"role":"user","content":" Hi\n"},{"role":"assistant","content":"Bye."}]})",
      "variables"));
  target.mutate = [words = target.words](const std::string& input, Random& random) {
    return random() % 2 == 0 ? laborious_template(random) : damaged_bytes(input, words, random);
  };
  const auto costs = std::make_shared<std::vector<double>>();
  target.costs = [costs] { return *costs; };
  target.run = [variables, plain, costs](std::string_view input) {
    *costs = {0, 0, 0};
    const JinjaTemplate chat(input, "template");
    constexpr JinjaLimits kLimits{.work = 500'000, .made_bytes = 4 << 20, .held_bytes = 1 << 20};
    const auto render = [&](const JinjaValue& with) {
      JinjaUse use;
      std::optional<UserError> refusal;
      begin_cost();
      try {
        require(is_valid_utf8(chat.render(*with.members(), kLimits, &use)), "what a template writes is valid UTF-8");
      } catch (const UserError& error) {
        refusal = error;
      }
      const Cost cost = cost_so_far();
      // Ours without optimisation and whatever was there anyway; a growing list is there twice for a moment.
      constexpr double kBlocksAUnit = 50, kBlocksBefore = 50'000, kBytesBefore = 200'000;
      const auto blocks = static_cast<double>(cost.num_blocks), bytes = static_cast<double>(cost.most_bytes);
      const auto counted = static_cast<double>(use.work), held = static_cast<double>(use.most_held_bytes);
      *costs = {blocks / (kBlocksBefore + kBlocksAUnit * counted), bytes / (kBytesBefore + 1.5 * held),
                blocks / (kBlocksBefore + kBlocksAUnit * static_cast<double>(kLimits.work))};
      if (refusal) throw *refusal;
    };
    try {
      render(variables);
    } catch (const UserError&) {
      render(plain);
    }
  };
  return target;
}

}  // namespace

std::vector<Target> tokenizer_targets(const Scratch& scratch) {
  return {tokenizer_json(scratch),   sentencepiece(scratch),    tiktoken(scratch), tekken(scratch),
          vocab_and_merges(scratch), word_piece_vocab(scratch), text(scratch),     chat_template(scratch)};
}

}  // namespace megalith::fuzz
