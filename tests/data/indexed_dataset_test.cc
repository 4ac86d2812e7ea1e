// The .bin and .idx files: bytes on disk, reading any part, and what damaged files meet.
#include <cstring>

#include "data/indexed_writer.h"
#include "data_fixture.h"

namespace megalith {
namespace {

using IndexedDatasetTest = DataTest;

template <typename T>
std::string raw(std::initializer_list<T> values) {
  return std::string(reinterpret_cast<const char*>(values.begin()), values.size() * sizeof(T));
}

TEST_F(IndexedDatasetTest, BytesOnDiskAreMegatrons) {
  IndexedDatasetWriter writer(path("d"), TokenType::kUint16);
  writer.add_sequence(std::vector<int32_t>{1, 2, 65535});
  writer.end_document();
  writer.end_document();  // an empty document
  writer.add_sequence(std::vector<int32_t>{7});
  writer.add_sequence(std::vector<int32_t>{8, 9});
  writer.end_document();
  writer.finish();
  EXPECT_EQ(read_file(path("d.bin")), raw<uint16_t>({1, 2, 65535, 7, 8, 9}));
  EXPECT_EQ(read_file(path("d.idx")), std::string("MMIDIDX\0\0", 9) + raw<uint64_t>({1}) + raw<uint8_t>({8}) +
                                          raw<uint64_t>({3, 4}) + raw<int32_t>({3, 1, 2}) + raw<int64_t>({0, 6, 8}) +
                                          raw<int64_t>({0, 1, 1, 3}));
}

TEST_F(IndexedDatasetTest, ReadsAnyPartOfAnySequence) {
  for (const int64_t vocab_size : {65499, 65500}) {
    write_counting("d", {5, 0, 3}, vocab_size);
    for (const char* name : {"d", "d.bin", "d.idx"}) {
      const IndexedDataset data(path(name));
      EXPECT_EQ(data.token_type(), vocab_size == 65499 ? TokenType::kUint16 : TokenType::kInt32);
      EXPECT_EQ(data.num_sequences(), 3);
      EXPECT_EQ(data.num_documents(), 3);
      EXPECT_EQ(data.num_tokens(), 8);
      EXPECT_EQ(data.sequence_length(1), 0);
      int64_t tokens[3] = {};
      data.read(2, 1, 2, tokens);
      EXPECT_EQ(tokens[0], 21);
      EXPECT_EQ(tokens[1], 22);
      data.read(0, 5, 0, tokens);
      EXPECT_THROW(data.read(0, 4, 2, tokens), InternalError);
      EXPECT_THROW(data.read(3, 0, 0, tokens), InternalError);
      EXPECT_EQ(data.describe(2), path("d.bin") + ", document 2");
    }
  }
}

TEST_F(IndexedDatasetTest, EveryTokenTypeIsRead) {
  const auto check = [&](uint8_t code, const std::string& bin, std::vector<int64_t> expected) {
    const auto count = static_cast<int32_t>(expected.size());
    write_file_atomic(path("t.bin"), bin);
    write_file_atomic(path("t.idx"), std::string("MMIDIDX\0\0", 9) + raw<uint64_t>({1}) + raw<uint8_t>({code}) +
                                         raw<uint64_t>({1, 2}) + raw<int32_t>({count}) + raw<int64_t>({0}) +
                                         raw<int64_t>({0, 1}));
    const IndexedDataset data(path("t"));
    std::vector<int64_t> tokens(expected.size());
    data.read(0, 0, count, tokens.data());
    EXPECT_EQ(tokens, expected) << int{code};
  };
  check(1, raw<uint8_t>({1, 200}), {1, 200});
  check(2, raw<int8_t>({1, -2}), {1, -2});
  check(3, raw<int16_t>({1, -2}), {1, -2});
  check(4, raw<int32_t>({1, 1 << 20}), {1, 1 << 20});
  check(5, raw<int64_t>({1, INT64_C(1) << 40}), {1, INT64_C(1) << 40});
  check(8, raw<uint16_t>({1, 65535}), {1, 65535});
}

TEST_F(IndexedDatasetTest, AbandonedWriterLeavesNothing) {
  {
    IndexedDatasetWriter writer(path("d"), TokenType::kInt32);
    writer.add_sequence(std::vector<int32_t>{1});
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(IndexedDatasetTest, MissingAndCutFilesAreNamed) {
  EXPECT_EQ(message_of([&] { IndexedDataset data(path("none")); }),
            fmt::format("data set {0}: {0}.idx does not exist", path("none")));
  write_counting("d", {5, 7, 6}, 65500);
  const std::string bin = read_file(path("d.bin"));
  write_file_atomic(path("d.bin"), bin.substr(0, bin.size() - 41));
  EXPECT_EQ(message_of([&] { IndexedDataset data(path("d")); }),
            fmt::format("{0}.bin is 41 bytes shorter than {0}.idx says (18 tokens of 4 bytes)", path("d")));
}

TEST_F(IndexedDatasetTest, EveryCutOfTheIndexIsRefused) {
  write_counting("d", {5, 7});
  const std::string index = read_file(path("d.idx"));
  for (size_t size = 0; size < index.size(); ++size) {
    write_file_atomic(path("d.idx"), index.substr(0, size));
    EXPECT_THROW(IndexedDataset(path("d")), UserError) << size;
  }
}

// A seeded walk over single-byte changes: each file is refused or read without leaving its bounds.
TEST_F(IndexedDatasetTest, EveryChangedByteIsRefusedOrHarmless) {
  write_counting("d", {5, 7, 0, 3});
  const std::string index = read_file(path("d.idx"));
  int num_refused = 0;
  for (size_t at = 0; at < index.size(); ++at) {
    for (const char value : {'\x00', '\x01', '\x7f', '\x80', '\xff'}) {
      std::string changed = index;
      changed[at] = value;
      write_file_atomic(path("d.idx"), changed);
      try {
        const IndexedDataset data(path("d"));
        std::vector<int64_t> tokens(64);
        for (int64_t i = 0; i < data.num_sequences(); ++i) {
          ASSERT_LE(data.sequence_length(i), 15);
          data.read(i, 0, data.sequence_length(i), tokens.data());
        }
      } catch (const UserError& error) {
        EXPECT_TRUE(error.message().starts_with(path("d"))) << error.message();
        ++num_refused;
      }
    }
  }
  EXPECT_GT(num_refused, 200);
}

TEST_F(IndexedDatasetTest, HostileHeadersAreExplained) {
  write_counting("d", {5, 7});
  const std::string index = read_file(path("d.idx"));
  const auto with = [&](size_t at, const std::string& bytes) {
    std::string changed = index;
    changed.replace(at, bytes.size(), bytes);
    write_file_atomic(path("d.idx"), changed);
    const std::string message = message_of([&] { IndexedDataset data(path("d")); });
    return message.substr(std::min(message.size(), path("d.idx").size()));
  };
  EXPECT_EQ(with(0, "X"), " is not a Megatron index file (it does not begin with MMIDIDX)");
  EXPECT_EQ(with(9, raw<uint64_t>({2})), " has version 2; version 1 is supported");
  EXPECT_EQ(with(17, raw<uint8_t>({9})), " has the unknown token type 9");
  EXPECT_EQ(with(17, raw<uint8_t>({6})), " holds floating-point numbers, not token ids");
  EXPECT_EQ(with(18, raw<uint64_t>({UINT64_MAX})),
            fmt::format(" is too short: it has {} bytes, but {} sequences and 3 document boundaries need more",
                        index.size(), UINT64_MAX));
  EXPECT_EQ(with(34, raw<int32_t>({-1})), ": sequence 0 has length -1 and offset 0");
  EXPECT_EQ(with(42, raw<int64_t>({INT64_MAX})), fmt::format(": sequence 0 has length 5 and offset {}", INT64_MAX));
  EXPECT_EQ(with(58, raw<int64_t>({1})), ": document boundary 0 is 1, after 0, with 2 sequences");
  EXPECT_EQ(with(74, raw<int64_t>({1})), ": the last of 3 document boundaries is 1, but there are 2 sequences");
}

}  // namespace
}  // namespace megalith
