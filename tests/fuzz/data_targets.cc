// What data code reads: token files, index caches, compressed text, JSON lines, what an unfinished run left, lists.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>

#include "core/file.h"
#include "core/json.h"
#include "core/log.h"
#include "data/blend.h"
#include "data/compressed.h"
#include "data/data_options.h"
#include "data/dataset_tools.h"
#include "data/gpt_dataset.h"
#include "data/index_array.h"
#include "data/indexed_dataset.h"
#include "data/indexed_writer.h"
#include "data/json_texts.h"
#include "data/prepare.h"
#include "data/prepare_encoder.h"
#include "data/prepare_input.h"
#include "data/prepare_state.h"
#include "data/text_source.h"
#include "fuzz/mutate.h"
#include "fuzz/target.h"
#include "tokenizer/utf8.h"

namespace megalith::fuzz {
namespace {

namespace fs = std::filesystem;

Logger& silent_log() {
  static Logger log(LoggerSettings{.level = LogLevel::kSilent});
  return log;
}

// One sequence a document.
std::string write_data_set(const Scratch& scratch, const std::string& name, const std::vector<int>& sizes,
                           int64_t vocab_size) {
  const std::string prefix = scratch.path(name);
  IndexedDatasetWriter writer(prefix, token_type_for(vocab_size));
  int32_t id = 0;
  for (const int size : sizes) {
    std::vector<int32_t> ids;
    for (int i = 0; i < size; ++i) ids.push_back(id++ % 500);
    writer.add_sequence(ids);
    writer.end_document();
  }
  writer.finish();
  return prefix;
}

void read_samples(const SampleSource& samples, int64_t sequence_length) {
  std::vector<int64_t> sample(static_cast<size_t>(sequence_length + 1));
  for (int64_t i = 0; i < std::min<int64_t>(samples.num_samples(), 200); ++i) samples.read(i, sample);
}

Target token_files(const Scratch& scratch) {
  Target target{"token_files", {}, {"MMIDIDX", std::string(8, '\0'), std::string(kBetweenFiles)}, {}, {}};
  for (const int64_t vocab_size : {1000, 100'000}) {
    const std::string prefix = write_data_set(scratch, "good", {5, 7, 0, 30}, vocab_size);
    target.seeds.push_back(joined({read_file(prefix + ".idx"), read_file(prefix + ".bin")}));
  }
  target.run = [&scratch](std::string_view input) {
    const auto files = divided(input, 2);
    scratch.put("d.idx", files[0]);
    scratch.put("d.bin", files[1]);
    const std::string prefix = scratch.path("d");
    check_data_set(prefix, 1000, silent_log());
    const auto data = std::make_shared<const IndexedDataset>(prefix);
    std::vector<int64_t> tokens;
    for (int64_t i = 0; i < data->num_sequences(); ++i) {
      tokens.resize(static_cast<size_t>(data->sequence_length(i)));
      data->read(i, 0, data->sequence_length(i), tokens.data());
      data->sequence_bytes(i);
      data->describe(i);
    }
    draw(measure_lengths(*data));
    if (data->num_tokens() > 100'000) return;  // many sequences may hold the same bytes
    GptDatasetOptions options;
    options.sequence_length = 4;
    options.num_samples = 20;
    options.vocab_size = 1000;
    read_samples(GptDataset(data, {0, data->num_sequences()}, options, silent_log()), 4);
  };
  return target;
}

Target npy(const Scratch& scratch) {
  Target target{
      "npy_array", {}, {"'<i4'", "'<u4'", "'<i8'", "'<i2'", "True", "False", "(3,)", "(3, 2)", ", }"}, {}, {}};
  const fs::path file = scratch.path("a.npy");
  IndexArray::of(std::vector<int32_t>{1, 2, 3, 4, 5, 6}, 2).save_npy(file);
  target.seeds.push_back(read_file(file));
  IndexArray::of(std::vector<int64_t>{1, -2, 3}).save_npy(file);
  target.seeds.push_back(read_file(file));
  target.run = [&scratch](std::string_view input) {
    const IndexArray array = IndexArray::load_npy(scratch.put("a.npy", input));
    for (int64_t i = 0; i < array.rows(); ++i) {
      for (int64_t k = 0; k < array.columns(); ++k) array.at(i, k);
    }
  };
  return target;
}

// The cached arrays of a data set and of a blend: what is read from them is checked, or leads outside the data.
Target index_cache(const Scratch& scratch) {
  const std::string prefix = write_data_set(scratch, "cached", {5, 7, 0, 30}, 1000);
  const fs::path folder = scratch.path("cache");
  const auto use = [prefix, folder] {
    const auto data = std::make_shared<const IndexedDataset>(prefix);
    GptDatasetOptions options;
    options.sequence_length = 4;
    options.num_samples = 20;
    options.cache_folder = folder;
    std::vector<std::unique_ptr<SampleSource>> parts;
    for (int i = 0; i < 2; ++i) {
      parts.push_back(
          std::make_unique<GptDataset>(data, ElementRange{0, data->num_sequences()}, options, silent_log()));
    }
    read_samples(*parts[0], 4);
    read_samples(BlendedDataset(std::move(parts), {0.5, 0.5}, 24, Split::kTrain, folder, silent_log()), 4);
  };
  use();
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::vector<std::string> contents;
  for (const fs::path& file : files) contents.push_back(read_file(file));
  Target target{
      "index_cache", {joined(contents)}, {"'<i4'", "'<i8'", "(20,)", "(21, 2)", std::string(4, '\xFF')}, {}, {}};
  target.run = [&scratch, folder, files, use](std::string_view input) {
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) fs::remove_all(entry.path());
    const auto parts = divided(input, files.size());
    for (size_t i = 0; i < files.size(); ++i) scratch.put(("cache" / files[i].filename()).string(), parts[i]);
    use();
  };
  target.mutate = [num_files = files.size()](const std::string& input, Random& random) {
    auto parts = divided(input, num_files);
    std::string& part = parts[below(num_files, random)];
    // Only the values, so that the headers still fit.
    const size_t header = std::min<size_t>(part.size(), 128);
    std::string values = damaged_bytes(part.substr(header), {}, random);
    values.resize(part.size() - header);
    part.replace(header, std::string::npos, values);
    return joined(parts);
  };
  return target;
}

Target compressed_text(const Scratch& scratch) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += "line " + std::to_string(i * i) + " of some text\n";
  Target target{"compressed_text",
                {gzipped(text), xzipped(text), zstandard(text), gzipped(text) + gzipped("more\n"), text},
                {"\x1F\x8B\x08",
                 "\xFD"
                 "7zXZ",
                 "\x28\xB5\x2F\xFD", "\x50\x2A\x4D\x18"},
                {},
                {}};
  target.run = [&scratch](std::string_view input) {
    const auto source = open_text(scratch.put("t", input));
    std::string block(1 << 12, '\0');
    int64_t total = 0;
    while (const size_t count = source->read(block)) {
      require(count <= block.size(), "no more is read than there is room for");
      // A few bytes can stand for any amount of text.
      if ((total += static_cast<int64_t>(count)) > 4'000'000) break;
    }
  };
  return target;
}

Target json_lines(const Scratch& scratch) {
  auto tokenizer = std::shared_ptr<const Tokenizer>(make_byte_tokenizer());
  Target target{
      "json_lines", {}, {"\"text\"", "{\"text\": ", "\\u00e9", "\\ud83e", "[", "{", "\n", ". A", "}\n"}, {}, {}};
  target.seeds = {"{\"text\": \"one \\u00e9\\n Dr. Who. Yes.\", \"n\": [1, {\"a\": -2.5e3}]}\n\n{\"text\": \"\"}\n",
                  "{\"text\": [\"a sentence.\", \"\\ud83e\\udd99\"]}\n{\"text\": \"no line end\"}"};
  target.run = [&scratch, tokenizer](std::string_view input) {
    // The reader of simple lines agrees with the general one.
    JsonTexts texts({"text"});
    for (std::string_view rest = input; !rest.empty();) {
      const std::string_view line = rest.substr(0, rest.find('\n'));
      if (is_valid_utf8(line) && texts.read(line)) {
        std::vector<std::string> found;
        texts.for_each(0, [&](std::string_view text) { found.emplace_back(text); });
        const Json expected = texts.is_list(0) ? Json(found) : Json(found.at(0));
        require(parse_json(line, "line").at("text") == expected, "both readers give the same texts");
      }
      rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    }
    const std::vector<PrepareInput> inputs = find_inputs({scratch.put("l.jsonl", input)}, false);
    for (const bool by_sentences : {false, true}) {
      PrepareOptions options;
      options.append_eod = true;
      options.split_sentences = by_sentences;
      options.max_line_memory = 4096 * kGeneralLineMemory;
      const ChunkEncoder encoder(options, "", *tokenizer, TokenType::kUint16);
      ChunkReader reader(inputs, {"text"}, 4096, InputPosition{});
      while (auto chunk = reader.next()) {
        EncodedChunk encoded;
        encoded.chunk = std::move(chunk);
        encoder.encode(encoded);
        const EncodedChunk::Output& output = encoded.outputs.at(0);
        require(output.sequences.size() == encoded.lines.size(), "each document has its sequences");
        require(std::accumulate(output.lengths.begin(), output.lengths.end(), int64_t{0}) * 2 ==
                    static_cast<int64_t>(output.tokens.size()),
                "the lengths are those of the tokens");
      }
    }
  };
  target.mutate = [words = target.words](const std::string& input, Random& random) {
    return damaged_lines(input, words, random);
  };
  return target;
}

// The state of a run that was killed, and the parts beside it.
Target prepare_state(const Scratch& scratch) {
  std::string lines;
  for (int i = 0; i < 40; ++i) lines += "{\"text\": \"document " + std::to_string(i) + "\"}\n";
  const std::string input_file = scratch.put("state.jsonl", lines);
  auto tokenizer = std::shared_ptr<const Tokenizer>(make_byte_tokenizer());
  const fs::path folder = scratch.path("out.prepare");
  PrepareOptions options;
  options.input = {input_file};
  options.output_prefix = scratch.path("out");
  options.workers = 1;
  options.overwrite = true;
  const auto run = [options, tokenizer] { prepare_data(options, *tokenizer, silent_log()); };
  {
    const std::vector<int32_t> ids = {1, 2, 3};
    ResumableOutputs left(options.output_prefix,
                          {{scratch.path("out_text_document"), token_type_for(tokenizer->vocab_size())}},
                          job_of(options, find_inputs(options.input, false), *tokenizer));
    left.take_up([](const Json&, const std::string&) {}, silent_log());
    PrepareState state;
    state.position = {.input = 0, .offset = 23, .line = 2, .input_bytes = 23, .checksum = 0};
    state.report.documents = 1;
    state.report.broken_lines = {{input_file, 1, "a reason"}};
    left.writers()[0].add_sequence(ids);
    left.writers()[0].end_document();
    left.store(to_json(state));
  }
  const std::vector<std::string> names = {"state.json", "part0.bin", "part0.lengths", "part0.documents"};
  std::vector<std::string> contents;
  for (const std::string& name : names) contents.push_back(read_file(folder / name));
  Target target{"prepare_state", {joined(contents)}, words_of_json({contents[0]}), {}, {}};
  target.run = [&scratch, names, run](std::string_view input) {
    const auto parts = divided(input, names.size());
    for (size_t i = 0; i < names.size(); ++i) scratch.put("out.prepare/" + names[i], parts[i]);
    run();
  };
  target.mutate = [words = target.words, count = names.size()](const std::string& input, Random& random) {
    auto parts = divided(input, count);
    if (random() % 4 == 0) {
      std::string& part = parts[1 + below(count - 1, random)];
      part = damaged_bytes(part, {}, random);
    } else {
      parts[0] = damaged_json(parts[0], words, random);
    }
    return joined(parts);
  };
  return target;
}

// Lists of data sets: of the form that data_path has, and JSON.
Target data_lists(const Scratch& scratch) {
  Target target{"data_lists",
                {joined({"0.3 a 0.7 b\n", R"({"train":[0.3,"a",0.7,"b"],"valid":["c"],"test":null})"})},
                {"0.3", "1e999", "nan", "inf", "-1", "train", "valid", "test", "a", " "},
                {},
                {}};
  target.run = [&scratch](std::string_view input) {
    const auto files = divided(input, 2);
    DataOptions options;
    options.data_args_path = scratch.put("list", files[0]);
    options.per_split_data_args_path = scratch.put("list.json", files[1]);
    const DataOptions listed = with_listed_paths(options);
    for (const auto* paths : {&listed.data_path, &listed.train_data_path, &listed.valid_data_path}) {
      const BlendSpec blend = parse_blend(*paths, "data_path");
      if (!blend.weights.empty()) build_blend_indices(normalize_weights(blend.weights), 50);
    }
  };
  target.mutate = [words = target.words](const std::string& input, Random& random) {
    const auto files = divided(input, 2);
    if (random() % 2 == 0) return joined({damaged_bytes(files[0], words, random), files[1]});
    return joined({files[0], damaged_json(files[1], words, random)});
  };
  return target;
}

}  // namespace

std::vector<Target> data_targets(const Scratch& scratch) {
  return {token_files(scratch), npy(scratch),           index_cache(scratch), compressed_text(scratch),
          json_lines(scratch),  prepare_state(scratch), data_lists(scratch)};
}

}  // namespace megalith::fuzz
