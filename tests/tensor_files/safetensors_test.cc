// The format: bytes on disk, what is read back, and what is refused.
#include "tensor_files/safetensors.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <random>

#include "core/error.h"
#include "support/temporary_folder.h"
#include "tensor_files/safetensors_writer.h"

namespace megalith {
namespace {

using test::TemporaryFolder;

std::string file_of(const std::string& header, const std::string& data, std::optional<uint64_t> announced = {}) {
  const uint64_t size = announced.value_or(header.size());
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(size >> (8 * i)));
  return bytes + header + data;
}

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

std::string refusal_of(const std::filesystem::path& path) {
  try {
    const SafetensorsFile file(path);
  } catch (const UserError& error) {
    return error.message();
  }
  return "accepted";
}

TEST(Safetensors, WritesTheBytesOfTheReference) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "x.safetensors";
  // Order by dtype (F32 after BF16 in the enumeration, so first), then by name; header padded to a multiple of 8.
  SafetensorsWriter writer(path, make_safetensors_layout({{"b", SafetensorsDtype::kBf16, {2}},
                                                          {"z", SafetensorsDtype::kF32, {1, 1}},
                                                          {"a", SafetensorsDtype::kBf16, {}}}));
  const float z = 1.0f;
  const uint16_t b[] = {0x3f80, 0x4000}, a = 0x4040;
  writer.write("b", 2, std::as_bytes(std::span(b + 1, 1)));
  writer.write("b", 0, std::as_bytes(std::span(b, 1)));
  writer.write("z", 0, std::as_bytes(std::span(&z, 1)));
  writer.write("a", 0, std::as_bytes(std::span(&a, 1)));
  writer.finish();
  std::string header =
      R"({"__metadata__":{"format":"pt"},"z":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]},)"
      R"("a":{"dtype":"BF16","shape":[],"data_offsets":[4,6]},"b":{"dtype":"BF16","shape":[2],"data_offsets":[6,10]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  EXPECT_EQ(read_file(path), file_of(header, std::string("\0\0\x80\x3f\x40\x40\x80\x3f\0\x40", 10)));
}

TEST(Safetensors, RoundTripKeepsEveryDtypeAndAwkwardShapes) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "x.safetensors";
  std::map<std::string, at::Tensor> tensors;
  for (const at::ScalarType dtype :
       {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kShort, at::kChar, at::kByte,
        at::kBool, at::kComplexFloat, at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kFloat8_e8m0fnu, at::kFloat8_e4m3fnuz,
        at::kFloat8_e5m2fnuz, at::kUInt16, at::kUInt32, at::kUInt64}) {
    const std::string name = c10::toString(dtype);
    tensors[name] = at::arange(7, at::kFloat).to(dtype);
    tensors[name + " scalar"] = at::ones({}).to(dtype);
    tensors[name + " empty"] = at::empty({3, 0, 2}, at::TensorOptions().dtype(dtype));
  }
  tensors["quotes \" and \\ and \n and ü"] = at::arange(6).view({1, 2, 3});
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, tensor] : tensors)
    entries.push_back({name, safetensors_dtype_of(tensor.scalar_type()), tensor.sizes().vec()});
  {
    SafetensorsWriter writer(path, make_safetensors_layout(entries, {{"made by", "a test"}}));
    for (const auto& [name, tensor] : tensors) writer.write(name, 0, bytes_of(tensor));
    writer.finish();
  }
  const SafetensorsFile file(path);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.metadata().at("made by"), "a test");
  ASSERT_EQ(file.tensors().size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    ASSERT_NE(file.find(name), nullptr) << name;
    const at::Tensor view = file.view(*file.find(name));
    EXPECT_EQ(view.scalar_type(), tensor.scalar_type()) << name;
    EXPECT_EQ(view.sizes(), tensor.sizes()) << name;
    EXPECT_TRUE(std::ranges::equal(bytes_of(view), bytes_of(tensor))) << name;
  }
}

TEST(Safetensors, ViewOutlivesTheFileObject) {
  const TemporaryFolder folder;
  const auto path = folder.write("x", file_of(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", "\x05\x06"));
  at::Tensor view;
  {
    const SafetensorsFile file(path);
    view = file.view(*file.find("a"));
  }
  EXPECT_EQ(view[1].item<int64_t>(), 6);
}

TEST(Safetensors, UnalignedDataIsReadAsACopy) {
  const TemporaryFolder folder;
  // 8 + 55 bytes of header: the float starts at an odd byte.
  std::string header = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  header.resize(55, ' ');
  const SafetensorsFile file(folder.write("x", file_of(header, std::string("\0\0\x80\x3f", 4))));
  ASSERT_EQ(file.find("a")->offset % 2, 1);
  EXPECT_EQ(file.view(*file.find("a")).item<float>(), 1.0f);
}

TEST(Safetensors, SubByteTypesAreListedButNotRead) {
  const TemporaryFolder folder;
  const SafetensorsFile file(
      folder.write("x", file_of(R"({"a":{"dtype":"F4","shape":[4],"data_offsets":[0,2]}})", "ab")));
  EXPECT_EQ(file.find("a")->num_bytes, 2);
  EXPECT_THROW(file.view(*file.find("a")), UserError);
}

TEST(Safetensors, RefusesWhatIsNotTrue) {
  struct Case {
    std::string content, part;  // that the message must contain
  };
  const auto tensor = [](const std::string& body) { return "{\"t\":{" + body + "}}"; };
  const std::string good = R"("dtype":"U8","shape":[2],"data_offsets":[0,2])";
  const std::vector<Case> cases = {
      {"", "has 0 bytes"},
      {"1234567", "has 7 bytes"},
      {file_of("{}", "", 100'000'001), "announce a header of 100000001 bytes"},
      {file_of("{}", "", ~uint64_t{0}), "announce a header of 18446744073709551615 bytes"},
      {file_of("{}", "", 3), "announce a header of 3 bytes"},
      {file_of("", ""), "does not start with '{'"},
      {file_of(" {}", ""), "does not start with '{'"},
      {file_of("[]", ""), "does not start with '{'"},
      {file_of("{\"a\":", ""), "not valid JSON at byte"},
      {file_of("{\"a\xff\":1}", ""), "not valid JSON at byte"},
      {file_of("{}x", ""), "not valid JSON at byte"},
      {file_of("{\"a\":1}", ""), "\"a\": its entry holds a number, expected an object"},
      {file_of("{\"a\":[]}", ""), "its entry holds a list"},
      {file_of(tensor(good), "abc"), "the last 1 of 3 data bytes belong to no tensor"},
      {file_of(tensor(good), "a"), "its data ends at byte 2, but the file has 1 bytes of data"},
      {file_of(tensor(R"("dtype":"U9","shape":[2],"data_offsets":[0,2])"), "ab"), "dtype \"U9\" is unknown"},
      {file_of(tensor(R"("dtype":8,"shape":[2],"data_offsets":[0,2])"), "ab"),
       "\"dtype\" holds a number, expected a text"},
      {file_of(tensor(R"("shape":[2],"data_offsets":[0,2])"), "ab"), "dtype is missing"},
      {file_of(tensor(R"("dtype":"U8","data_offsets":[0,2])"), "ab"), "shape is missing"},
      {file_of(tensor(R"("dtype":"U8","shape":[2])"), "ab"), "data_offsets is missing"},
      {file_of(tensor(R"("dtype":"U8","shape":[2],"data_offsets":[0])"), "ab"), "data_offsets has 1 numbers"},
      {file_of(tensor(R"("dtype":"U8","shape":[-2],"data_offsets":[0,2])"), "ab"), "a negative number"},
      {file_of(tensor(R"("dtype":"U8","shape":[2.0],"data_offsets":[0,2])"), "ab"), "a fraction"},
      {file_of(tensor(R"("dtype":"U8","shape":[[2]],"data_offsets":[0,2])"), "ab"), "a list"},
      {file_of(tensor(R"("dtype":"U8","shape":[null],"data_offsets":[0,2])"), "ab"), "null"},
      {file_of(tensor(R"("dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,2])"), "ab"), "is too large"},
      {file_of(tensor(R"("dtype":"U8","shape":[3],"data_offsets":[0,2])"), "ab"),
       "shape [3] of U8 takes 3 bytes, data_offsets [0, 2] give 2"},
      {file_of(tensor(R"("dtype":"U8","shape":[2],"data_offsets":[2,0])"), "ab"), "run backwards"},
      {file_of(tensor(R"("dtype":"F64","shape":[1152921504606846976,16],"data_offsets":[0,0])"), ""), "is too large"},
      {file_of(tensor(R"("dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0])"), ""), "is too large"},
      {file_of(tensor(R"("dtype":"F4","shape":[3],"data_offsets":[0,1])"), "a"), "is too large"},
      {file_of(tensor(good + R"(,"extra":1)"), "ab"), "unknown field \"extra\""},
      {file_of(tensor(good + R"(,"dtype":"U8")"), "ab"), "dtype appears twice"},
      {file_of(
           R"({"t":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"t":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
           "ab"),
       "\"t\": the name appears twice"},
      {file_of(
           R"({"t":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"u":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
           "abc"),
       "\"u\": its data starts at byte 1, inside another tensor's"},
      {file_of(
           R"({"t":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"u":{"dtype":"U8","shape":[1],"data_offsets":[3,4]}})",
           "abcd"),
       "\"u\": bytes 2 to 3 before its data belong to no tensor"},
      {file_of(R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", "ab"), "bytes 0 to 1 before its data"},
      {file_of(R"({"__metadata__":{"a":1}})", ""), "expected a text"},
      {file_of(R"({"__metadata__":{"a":"b","a":"c"}})", ""), "twice"},
      {file_of(R"({"__metadata__":{"a":{}}})", ""), "an object"},
      {file_of("{\"t\":" + std::string(5000, '[') + std::string(5000, ']') + "}", ""), "a list"},
  };
  const TemporaryFolder folder;
  for (const Case& c : cases) {
    const std::string message = refusal_of(folder.write("bad.safetensors", c.content));
    EXPECT_NE(message.find(c.part), std::string::npos) << "expected: " << c.part << "\nfound: " << message;
    EXPECT_NE(message.find("bad.safetensors"), std::string::npos) << message;
  }
  EXPECT_EQ(refusal_of(folder.write("good.safetensors", file_of(tensor(good) + "   ", "ab"))), "accepted");
}

TEST(Safetensors, EmptyTensorsMayShareAnOffset) {
  const TemporaryFolder folder;
  const SafetensorsFile file(folder.write("x", file_of(R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                                                       R"("a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},)"
                                                       R"("c":{"dtype":"F32","shape":[2,0],"data_offsets":[2,2]}})",
                                                       "ab")));
  EXPECT_EQ(file.view(*file.find("c")).sizes().vec(), (std::vector<int64_t>{2, 0}));
}

// Whatever the bytes are, the reader returns or throws a UserError; what it accepts can be read to the last byte.
TEST(Safetensors, SurvivesDamagedHeaders) {
  const TemporaryFolder folder;
  const std::string good =
      file_of(R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
              R"("b":{"dtype":"BF16","shape":[3],"data_offsets":[24,30]}})",
              std::string(30, 'x'));
  std::mt19937 random(20240607);
  const std::string alphabet = "{}[]\",:0123456789-+.eE truefalsnul\\\xff";
  int num_accepted = 0, num_refused = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string bytes = good;
    const int num_edits = 1 + static_cast<int>(random() % 4);
    for (int e = 0; e < num_edits; ++e) {
      const size_t at = random() % bytes.size();
      switch (random() % 5) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes[at] = alphabet[random() % alphabet.size()];
          break;
        case 2:
          bytes.erase(at, 1 + random() % 8);
          break;
        case 3:
          bytes.insert(at, 1, alphabet[random() % alphabet.size()]);
          break;
        default:
          bytes.resize(at + 1);
          break;
      }
      if (bytes.empty()) bytes = "x";
    }
    try {
      const SafetensorsFile file(folder.write("fuzz", bytes));
      int64_t sum = 0;
      for (const auto& [name, tensor] : file.tensors()) {
        for (const std::byte b : file.bytes(tensor)) sum += static_cast<int>(b);
      }
      EXPECT_GE(sum, 0);
      ++num_accepted;
    } catch (const UserError&) {
      ++num_refused;
    }
  }
  // Edits within the data or the padding leave a valid file; most others do not.
  EXPECT_GT(num_accepted, 30);
  EXPECT_GT(num_refused, 2000);
}

}  // namespace
}  // namespace megalith
