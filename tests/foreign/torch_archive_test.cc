// Archives of torch.save and their pickles: values and tensors in place, and everything that is refused.
#include "foreign/torch_archive.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>

#include "core/error.h"
#include "foreign/dcp.h"
#include "foreign/dcp_writer.h"
#include "foreign/torch_archive_writer.h"
#include "foreign/torch_file.h"
#include "support/temporary_folder.h"

namespace megalith {
namespace {

using namespace pickled;  // NOLINT: opcodes read like words
using test::TemporaryFolder;

TEST(TorchArchive, ReadsStridedTensorsAndPlainValuesInPlace) {
  const TemporaryFolder folder;
  const std::string value = dict({{"w", tensor("FloatStorage", "0", 6, 0, {3, 2}, {1, 3})},
                                  {"step", "G" + std::string("\x40\x08\0\0\0\0\0\0", 8)},
                                  {"flag", "\x88"}});
  const std::string storage = floats({0, 1, 2, 3, 4, 5});
  const TorchArchive archive(
      folder.write("a.pt", pickled::archive({{"data.pkl", whole_pickle(value)}, {"data/0", storage}})));
  const auto found = archive.tensor(*archive.root().find("w"));
  ASSERT_TRUE(found);
  EXPECT_TRUE(at::equal(found->view(), at::tensor({0.f, 3.f, 1.f, 4.f, 2.f, 5.f}).view({3, 2})));
  EXPECT_EQ(archive.number(*archive.root().find("step")), 3.0);
  EXPECT_EQ(archive.root().find("flag")->option_text(), "true");
  EXPECT_FALSE(archive.tensor(*archive.root().find("flag")));
}

TEST(TorchArchive, OpensAnArchiveInsideAFileAtAnyByte) {
  const TemporaryFolder folder;
  const std::string inner = saved_tensor({7, 8}, {2}, {1});
  const auto file = std::make_shared<MappedFile>(folder.write("__0_0.distcp", "xyz" + inner + "rest"));
  const TorchArchive archive(file, 3, static_cast<int64_t>(inner.size()), "piece");
  const auto found = archive.tensor(archive.root());
  ASSERT_TRUE(found);
  EXPECT_TRUE(at::equal(found->view(), at::tensor({7.f, 8.f})));
}

TEST(TorchArchive, ReadsWhatIsWritten) {
  const TemporaryFolder folder;
  const at::Tensor matrix = at::arange(6, at::kBFloat16).view({2, 3});
  const std::string values = dict({{"large", whole(int64_t{1} << 40)},
                                   {"negative", whole(-3)},
                                   {"real", real(0.1)},
                                   {"none", none()},
                                   {"list", list({boolean(true), text("é")})},
                                   {"fields", object("argparse", "Namespace", dict({{"lr", real(1e-3)}}))}});
  AtomicFile file(folder.path() / "two");
  file.append("xyz");
  const int64_t first = append_archive(file, matrix), second = append_archive(file, values);
  file.commit();
  const auto mapped = std::make_shared<MappedFile>(folder.path() / "two");
  const TorchArchive of_tensor(mapped, 3, first, "tensor"), of_values(mapped, 3 + first, second, "values");
  const auto found = of_tensor.tensor(of_tensor.root());
  ASSERT_TRUE(found);
  EXPECT_TRUE(at::equal(found->view(), matrix));
  EXPECT_EQ(found->offset % 64, 0);
  const PickleValue& root = of_values.root();
  EXPECT_EQ(root.find("large")->whole(), int64_t{1} << 40);
  EXPECT_EQ(root.find("negative")->whole(), -3);
  EXPECT_EQ(root.find("real")->number(), 0.1);
  EXPECT_TRUE(root.find("none")->is(PickleValue::Kind::kNone));
  EXPECT_EQ(root.find("list")->items.at(1)->text, "é");
  EXPECT_EQ(root.find("fields")->find("lr")->number(), 1e-3);
}

TEST(TorchArchive, FoldersReadWhatIsWrittenUnderAllNames) {
  const TemporaryFolder folder;
  const at::Tensor whole_tensor = at::arange(12, at::kFloat).view({2, 6});
  DcpWriter writer(folder.path());
  writer.add_tensor({"a", "b"}, at::kFloat, {2, 6}, {{{0, 0}, {1, 6}}, {{1, 0}, {1, 6}}},
                    [&](const Box& box) { return whole_tensor.narrow(0, box.offset[0], 1).contiguous(); });
  writer.add_tensor({"step"}, at::scalar_tensor(3.0f));
  writer.add_object({"rate"}, real(0.5));
  writer.finish();
  const DcpFolder read(folder.path());
  for (const char* name : {"a", "b"}) {
    const ForeignTensor tensor = read.tensor(name);
    EXPECT_EQ(tensor.shape, (std::vector<int64_t>{2, 6}));
    ASSERT_EQ(tensor.shards.size(), 2u);
    EXPECT_TRUE(at::equal(tensor.shards[1].stored.view(), whole_tensor.narrow(0, 1, 1)));
  }
  EXPECT_EQ(read.tensor("step").shards.at(0).stored.view().item<float>(), 3);
  EXPECT_EQ(read.object("rate")->root().number(), 0.5);
}

// A fault of a file, and what the message says of it.
struct BadPickle {
  const char* what;
  std::string value;
  const char* message;
};

TEST(TorchArchive, RefusesWhatIsNotACheckpointByName) {
  const TemporaryFolder folder;
  const BadPickle rows[] = {
      {"a call of another function", name("os", "system") + tuple({text("rm -rf /")}) + "R", "os.system"},
      {"builtins", name("builtins", "eval") + tuple({text("1")}) + "R", "builtins.eval"},
      {"a class below torch", name("torch.hub", "load") + ")R", "torch.hub.load"},
      {"a name without end", name("megatron.core.enums", std::string(300, 'a')), "checkpoints are made of"},
      {"a class by the stack", text("subprocess") + text("Popen") + "\x93", "subprocess.Popen"},
      {"an opcode that imports by number", std::string("\x82\x01", 2), "opcode 0x82"},
      {"an instance of old classes", "(i__main__\nA\n", "opcode 0x69"},
      {"a call of a text", text("a") + ")R", "no class or function"},
      {"a memo that is not set", "h\x05", "memo 5"},
      {"a text beyond the end", "X" + little(1000, 4) + "abc", "cut off"},
      {"a negative length", "T" + little(0xffffffff, 4), "negative length"},
      {"a pop of nothing", "0", "stack is empty"},
      {"a tuple without a mark", "t", "no mark"},
      {"a pop below a mark", "N(a", "stack is empty"},
      {"a dict with a key too many", "(Nd", "key without a value"},
      {"items of a number", whole(1) + "Na", "items for another value"},
      {"state of a number", whole(1) + "Nb", "state for a value"},
      {"two values", "NN", "2 values"},
      {"a protocol of tomorrow", std::string("\x80\x09", 2) + "N", "protocol 9"},
  };
  for (const BadPickle& row : rows) {
    SCOPED_TRACE(row.what);
    const std::string bytes = pickled::archive({{"data.pkl", whole_pickle(row.value)}});
    try {
      const TorchArchive archive(folder.write("bad.pt", bytes));
      ADD_FAILURE() << "it was read";
    } catch (const UserError& error) {
      EXPECT_NE(error.message().find(row.message), std::string::npos) << error.message();
      EXPECT_NE(error.message().find("bad.pt"), std::string::npos);
    }
  }
}

TEST(TorchArchive, RefusesTensorsOutsideTheirStorage) {
  const TemporaryFolder folder;
  const BadPickle rows[] = {
      {"too many elements", tensor("FloatStorage", "0", 4, 0, {5}, {1}), "does not fit"},
      {"a start beyond", tensor("FloatStorage", "0", 4, 4, {1}, {1}), "does not fit"},
      {"a stride beyond", tensor("FloatStorage", "0", 4, 0, {2}, {4}), "does not fit"},
      {"a storage beyond its entry", tensor("FloatStorage", "0", 5, 0, {1}, {1}), "does not fit"},
      {"a wider dtype", tensor("DoubleStorage", "0", 4, 0, {4}, {1}), "does not fit"},
      {"a negative shape", tensor("FloatStorage", "0", 4, 0, {-1}, {1}), "does not fit"},
      {"an empty one of endless extents",
       tensor("FloatStorage", "0", 4, 0, {0, INT32_MAX, INT32_MAX, INT32_MAX}, {0, 0, 0, 0}), "does not fit"},
      {"a negative stride", tensor("FloatStorage", "0", 4, 3, {2}, {-1}), "does not fit"},
      {"no stride", tensor("FloatStorage", "0", 4, 0, {2, 2}, {1}), "has no shape"},
      {"a missing storage", tensor("FloatStorage", "1", 4, 0, {4}, {1}), "storage 1 is missing"},
  };
  for (const BadPickle& row : rows) {
    SCOPED_TRACE(row.what);
    const std::string storage = floats({0, 1, 2, 3});
    const TorchArchive archive(
        folder.write("bad.pt", pickled::archive({{"data.pkl", whole_pickle(row.value)}, {"data/0", storage}})));
    try {
      archive.tensor(archive.root());
      ADD_FAILURE() << "it was read";
    } catch (const UserError& error) {
      EXPECT_NE(error.message().find(row.message), std::string::npos) << error.message();
    }
  }
}

TEST(TorchArchive, EveryTruncationIsRefused) {
  const TemporaryFolder folder;
  const std::string good = saved_tensor({1, 2, 3, 4}, {2, 2}, {2, 1});
  for (size_t size = 0; size < good.size(); size += 3) {
    EXPECT_THROW(TorchArchive(folder.write("cut.pt", good.substr(0, size))), UserError) << size;
  }
}

TEST(Pickle, CallsMayNotCopyOneTupleWithoutEnd) {
  std::string value = "(" + std::string(1000, 'N') + "t\x94" + "0" + name("argparse", "Namespace") + "\x94" + "0";
  for (int i = 0; i < 1000; ++i) value += "h\x01" + std::string("h\0", 2) + "R0";
  const std::string bytes = whole_pickle(value + "N");
  try {
    const Pickle pickle(bytes, "calls");
    ADD_FAILURE() << "it was read";
  } catch (const UserError& error) {
    EXPECT_NE(error.message().find("more arguments"), std::string::npos) << error.message();
  }
}

TEST(Pickle, EndlessTreesAreRefusedWhenWalked) {
  // A list of the list before twice, 40 times: 2^40 values.
  std::string value = "]";
  for (int i = 0; i < 40; ++i) {
    const std::string before = "h" + std::string(1, static_cast<char>(i));
    value += "\x94(" + before + before + "l";
  }
  const std::string bytes = whole_pickle(value);
  const std::string doubled = whole_pickle("]\x94(h" + std::string(1, '\0') + "e");  // a list in itself
  for (const std::string& one : {bytes, doubled}) {
    try {
      const Pickle pickle(one, "tree");
      for_each_item(
          pickle, pickle.root(), [](const std::string&, const PickleValue&) {}, 1000);
      ADD_FAILURE() << "it was walked";
    } catch (const UserError& error) {
      EXPECT_NE(error.message().find("tree"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace megalith
