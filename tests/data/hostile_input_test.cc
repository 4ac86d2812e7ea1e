// Seeded mutations of everything that data code reads: each file is refused with its name, or read within its bounds.
#include <fstream>
#include <random>

#include "compressed.h"
#include "data/dataset_tools.h"
#include "data/index_array.h"
#include "data/prepare.h"
#include "data/text_source.h"
#include "data_fixture.h"

namespace megalith {
namespace {

class HostileInput : public DataTest {
 protected:
  // Without bringing it to disk, which would be most of the time.
  void put(std::string_view name, std::string_view content) {
    std::ofstream file(path(name), std::ios::binary | std::ios::trunc);
    file.write(content.data(), static_cast<std::streamsize>(content.size()));
  }
  std::string mutated(std::string text) {
    const auto any = [&](size_t below) { return static_cast<size_t>(rng_() % std::max<size_t>(below, 1)); };
    for (size_t times = 1 + any(3); times > 0 && !text.empty(); --times) {
      const size_t at = any(text.size());
      switch (any(6)) {
        case 0:
          text[at] = static_cast<char>(rng_());
          break;
        case 1:
          text.resize(at);
          break;
        case 2:
          text.insert(at, 1 + any(9), static_cast<char>(rng_()));
          break;
        case 3:
          text.erase(at, 1 + any(9));
          break;
        case 4: {  // a number of eight bytes at its extremes
          constexpr uint64_t kExtremes[] = {
              0, 1, UINT64_MAX, INT64_MAX, uint64_t{1} << 63, UINT32_MAX, uint64_t{1} << 60};
          const uint64_t value = kExtremes[any(std::size(kExtremes))];
          text.replace(at, std::min(text.size() - at, sizeof(value)), reinterpret_cast<const char*>(&value),
                       std::min(text.size() - at, sizeof(value)));
          break;
        }
        default:
          text += text.substr(at, any(40));
      }
    }
    return text;
  }
  // Runs `use`; UserErrors must name the file.
  template <typename Use>
  void survive(std::string_view name, const Use& use) {
    try {
      use();
      ++num_read_;
    } catch (const UserError& error) {
      EXPECT_NE(error.message().find(path(name)), std::string::npos) << error.message();
      ++num_refused_;
    }
  }
  void TearDown() override {
    EXPECT_GT(num_refused_, 20);
    EXPECT_GT(num_read_, 0);
  }

  std::mt19937_64 rng_{2024};
  int num_read_ = 0, num_refused_ = 0;
};

TEST_F(HostileInput, IndexAndTokenFiles) {
  write_counting("d", {5, 7, 0, 3});
  const std::string index = read_file(path("d.idx")), bin = read_file(path("d.bin"));
  for (int round = 0; round < 400; ++round) {
    put("d.idx", round % 5 == 0 ? index : mutated(index));
    put("d.bin", round % 5 == 0 ? mutated(bin) : bin);
    survive("d", [&] {
      const IndexedDataset data(path("d"));
      std::vector<int64_t> tokens(64);
      for (int64_t i = 0; i < data.num_sequences(); ++i) {
        ASSERT_LE(data.sequence_length(i), 64);
        data.read(i, 0, data.sequence_length(i), tokens.data());
        data.describe(i);
      }
      draw(measure_lengths(data));
    });
    for (const std::string& fault : check_data_set(path("d"), 100, log_).faults) {
      EXPECT_NE(fault.find(path("d")), std::string::npos) << fault;
    }
  }
}

TEST_F(HostileInput, IndexArrays) {
  IndexArray::of(std::vector<int32_t>{1, 2, 3, 4, 5, 6}, 2).save_npy(path("a.npy"));
  const std::string bytes = read_file(path("a.npy"));
  for (int round = 0; round < 500; ++round) {
    put("a.npy", mutated(bytes));
    survive("a.npy", [&] {
      const IndexArray array = IndexArray::load_npy(path("a.npy"));
      for (int64_t i = 0; i < array.rows(); ++i) array.at(i, array.columns() - 1);
    });
  }
}

TEST_F(HostileInput, CompressedText) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += fmt::format("line {} of some text\n", i * i);
  const std::string packed[] = {gzipped(text), xzipped(text), zstandard(text)};
  std::string block(1 << 16, '\0');
  for (int round = 0; round < 300; ++round) {
    put("t", mutated(packed[round % 3]));
    survive("t", [&] {
      const auto source = open_text(path("t"));
      while (source->read(block) > 0) {
      }
    });
  }
}

TEST_F(HostileInput, JsonLines) {
  const auto tokenizer = make_byte_tokenizer();
  PrepareOptions options;
  options.output_prefix = path("out");
  options.overwrite = true;
  options.workers = 1;
  const std::string good = "{\"text\": \"one \\u00e9\\n\", \"n\": [1, {\"a\": -2.5e3}]}\n";
  const std::string deep = "{\"text\": " + std::string(100'000, '[') + "\n";
  for (int round = 0; round < 30; ++round) {
    std::string lines = good;
    for (int i = 0; i < 20; ++i) {
      std::string line = mutated(good);
      std::erase(line, '\n');
      lines += line + "\n";
    }
    put("l.jsonl", lines + (round == 0 ? deep : "") + good);
    options.input = {path("l.jsonl")};
    survive("l.jsonl", [&] {
      const PrepareReport report = prepare_data(options, *tokenizer, log_);
      EXPECT_GE(report.documents, 2);
      EXPECT_EQ(report.documents + report.num_broken_lines + report.num_empty_lines, round == 0 ? 23 : 22);
      for (const InputProblem& broken : report.broken_lines) {
        EXPECT_FALSE(broken.reason.empty());
        ++num_refused_;
      }
    });
  }
}

}  // namespace
}  // namespace megalith
