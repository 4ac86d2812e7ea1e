// Text from plain and compressed inputs, from pipes, and from inputs that are cut or damaged.
#include "data/text_source.h"

#include <fcntl.h>

#include <random>
#include <thread>

#include "compressed.h"
#include "data/prepare.h"
#include "data_fixture.h"

namespace megalith {
namespace {

class TextSourceTest : public DataTest {
 protected:
  static std::string read_all(TextSource& source, size_t step) {
    std::string text, block(step, '\0');
    while (const size_t count = source.read(block)) text.append(block, 0, count);
    return text;
  }
  static std::string long_text() {
    std::mt19937 rng(3);
    std::string text;
    while (text.size() < 900'000) text += fmt::format("line {} {}\n", rng() % 1000, rng());
    return text;
  }
  using Compress = std::string (*)(std::string_view);
  static constexpr Compress kCompress[] = {gzipped, xzipped, zstandard};
};

TEST_F(TextSourceTest, EveryFormatGivesTheTextWhateverItsNameAndTheStep) {
  const std::string text = long_text();
  for (const Compress compress : kCompress) {
    for (const size_t step : {size_t{100}, size_t{300'000}}) {
      write_file_atomic(path("no_ending"), compress(text));
      const auto source = open_text(path("no_ending"));
      EXPECT_TRUE(read_all(*source, step) == text);
      EXPECT_EQ(source->input_bytes(), file_bytes(path("no_ending")));
      EXPECT_FALSE(source->try_seek(0));
    }
    // Concatenated streams, as by `cat a.gz b.gz`, one of them empty.
    write_file_atomic(path("joined"), compress("first ") + compress("") + compress("second"));
    EXPECT_EQ(read_all(*open_text(path("joined")), 4), "first second");
  }
  write_file_atomic(path("plain.gz"), text);
  const auto plain = open_text(path("plain.gz"));
  EXPECT_TRUE(plain->try_seek(10));
  EXPECT_TRUE(read_all(*plain, 1000) == text.substr(10));
  write_file_atomic(path("empty"), std::string_view());
  EXPECT_EQ(read_all(*open_text(path("empty")), 10), "");
  EXPECT_EQ(without_compression_ending("a.txt.GZ"), "a.txt");
  EXPECT_EQ(without_compression_ending("a.txt"), "a.txt");
}

TEST_F(TextSourceTest, APipeIsReadToItsEnd) {
  const std::string text = long_text(), packed = zstandard(text);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  std::jthread writer([&] {
    for (size_t at = 0; at < packed.size();) {
      const ssize_t count = ::write(ends[1], packed.data() + at, std::min<size_t>(5000, packed.size() - at));
      if (count <= 0) break;
      at += static_cast<size_t>(count);
    }
    ::close(ends[1]);
  });
  EXPECT_TRUE(read_all(*open_text(ends[0], "standard input"), 4096) == text);
}

TEST_F(TextSourceTest, CutAndDamagedInputsAreNamed) {
  const std::string text = long_text();
  for (const Compress compress : kCompress) {
    const std::string packed = compress(text);
    write_file_atomic(path("cut"), packed.substr(0, packed.size() - 30));
    const std::string cut = message_of([&] { read_all(*open_text(path("cut")), 1 << 16); });
    EXPECT_TRUE(cut.starts_with(path("cut") + ": the ") && cut.find("near byte") != std::string::npos) << cut;
    std::string changed = packed;
    for (size_t i = changed.size() / 2; i < changed.size() / 2 + 64; ++i) changed[i] = static_cast<char>(~changed[i]);
    write_file_atomic(path("changed"), changed);
    const std::string damaged = message_of([&] { read_all(*open_text(path("changed")), 1 << 16); });
    EXPECT_TRUE(damaged.starts_with(path("changed") + ": the ")) << damaged;
  }
  EXPECT_EQ(message_of([&] { open_text(path("none")); }),
            "cannot open " + path("none") + ": No such file or directory");
}

TEST_F(TextSourceTest, CompressedInputsArePreparedAlikeAndTakenUpAgain) {
  std::string lines;
  for (int i = 0; i < 4000; ++i) lines += fmt::format("{{\"text\": \"document {} {}\"}}\n", i, std::string(300, 'x'));
  const auto tokenizer = make_byte_tokenizer();
  PrepareOptions options;
  options.output_prefix = path("out");
  options.workers = 2;
  options.store_every_s = 0;
  options.overwrite = true;
  write_file_atomic(path("a.jsonl"), lines);
  options.input = {path("a.jsonl")};
  prepare_data(options, *tokenizer, log_);
  const std::string expected = read_file(path("out_text_document.bin"));
  for (const Compress compress : kCompress) {
    const std::string packed = compress(lines);
    // A damaged end stops the run; with the whole file, of another time stamp, it begins anew.
    write_file_atomic(path("b"), packed.substr(0, packed.size() / 2));
    options.input = {path("b")};
    EXPECT_THROW(prepare_data(options, *tokenizer, log_), UserError);
    write_file_atomic(path("b"), packed);
    EXPECT_EQ(prepare_data(options, *tokenizer, log_).documents, 4000);
    EXPECT_TRUE(read_file(path("out_text_document.bin")) == expected);
  }
}

}  // namespace
}  // namespace megalith
