// Files: what is written appears whole or not at all, and every failure names path and reason.
#include "core/file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "core/error.h"

namespace megalith {
namespace {
namespace fs = std::filesystem;

class FileTest : public testing::Test {
 protected:
  FileTest() {
    std::string pattern = (fs::temp_directory_path() / "megalith_file_XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
  }
  ~FileTest() override { remove_tree(folder_); }

  size_t num_entries() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }
  static std::string message_of(const std::function<void()>& action) {
    try {
      action();
    } catch (const UserError& error) {
      return error.message();
    }
    return "no error";
  }

  fs::path folder_;
};

TEST_F(FileTest, WritesAndReadsBackAnyBytes) {
  const std::string content("a\0b\xff\n", 5);
  write_file_atomic(folder_ / "f", content);
  EXPECT_EQ(read_file(folder_ / "f"), content);
  EXPECT_EQ(file_bytes(folder_ / "f"), 5);
  write_file_atomic(folder_ / "f", std::string_view());
  EXPECT_EQ(read_file(folder_ / "f"), "");
  EXPECT_EQ(num_entries(), 1u);
}

TEST_F(FileTest, CreatesMissingFolders) {
  write_file_atomic(folder_ / "a/b/c", std::string_view("x"));
  EXPECT_EQ(read_file(folder_ / "a/b/c"), "x");
}

TEST_F(FileTest, FilesOfUnknownSizeAreRead) { EXPECT_FALSE(read_file("/proc/self/status").empty()); }

TEST_F(FileTest, FailuresNamePathAndReason) {
  const std::string missing = (folder_ / "missing").string();
  EXPECT_EQ(message_of([&] { read_file(missing); }), "cannot open " + missing + ": No such file or directory");
  EXPECT_EQ(message_of([&] { MappedFile file(missing); }), "cannot open " + missing + ": No such file or directory");
  EXPECT_EQ(message_of([&] { file_bytes(missing); }), "cannot open " + missing + ": No such file or directory");
  EXPECT_EQ(message_of([&] { read_file(folder_); }), "cannot read " + folder_.string() + ": Is a directory");
  write_file_atomic(folder_ / "plain", std::string_view("x"));
  const std::string below = (folder_ / "plain/sub").string();
  EXPECT_NE(message_of([&] { write_file_atomic(below, std::string_view("x")); }).find("Not a directory"),
            std::string::npos);
}

TEST_F(FileTest, AbandonedFileLeavesNothingAndKeepsTheOld) {
  write_file_atomic(folder_ / "f", std::string_view("old"));
  {
    AtomicFile file(folder_ / "f");
    file.append("new");
    file.flush();
    EXPECT_EQ(read_file(folder_ / "f"), "old");
  }
  EXPECT_EQ(read_file(folder_ / "f"), "old");
  EXPECT_EQ(num_entries(), 1u);
}

TEST_F(FileTest, AppendKeepsOrderAcrossTheBuffer) {
  AtomicFile file(folder_ / "f");
  std::string expected;
  for (size_t size : {1, 500'000, 600'000, 3'000'000, 7}) {
    const std::string piece(size, static_cast<char>('a' + size % 26));
    file.append(piece);
    expected += piece;
  }
  EXPECT_EQ(file.size(), static_cast<int64_t>(expected.size()));
  AtomicFile moved(std::move(file));
  moved.commit();
  EXPECT_TRUE(read_file(folder_ / "f") == expected);
  EXPECT_THROW(moved.append("x"), InternalError);
}

TEST_F(FileTest, MappingSeesTheBytesAndOutlivesTheName) {
  write_file_atomic(folder_ / "f", std::string_view("hello"));
  MappedFile file(folder_ / "f", MappedFile::Access::kRandom);
  MappedFile moved = std::move(file);
  moved.advise(MappedFile::Access::kWillNeed, 1, 2);
  moved.advise(MappedFile::Access::kWillNeed, 99);
  remove_tree(folder_ / "f");
  EXPECT_EQ(moved.text(), "hello");
  EXPECT_EQ(moved.bytes().size(), 5u);
  EXPECT_EQ(file.size(), 0u);
}

TEST_F(FileTest, EmptyFileMapsToNoBytes) {
  write_file_atomic(folder_ / "f", std::string_view());
  EXPECT_TRUE(MappedFile(folder_ / "f").bytes().empty());
}

TEST_F(FileTest, DirectoryAppearsOnlyAtCommit) {
  const fs::path target = folder_ / "iter_0000001";
  {
    AtomicDirectory directory(target);
    write_file_atomic(directory.path() / "sub/model", std::string_view("w"));
    EXPECT_FALSE(fs::exists(target));
    directory.commit();
  }
  EXPECT_EQ(read_file(target / "sub/model"), "w");
  EXPECT_EQ(num_entries(), 1u);
}

TEST_F(FileTest, AbandonedDirectoryLeavesNothing) {
  {
    AtomicDirectory directory(folder_ / "d");
    write_file_atomic(directory.path() / "f", std::string_view("w"));
  }
  EXPECT_EQ(num_entries(), 0u);
}

TEST_F(FileTest, ExistingDirectoryIsRefusedUnlessReplaced) {
  const fs::path target = folder_ / "d/";
  write_file_atomic(target / "old", std::string_view("1"));
  EXPECT_EQ(message_of([&] { AtomicDirectory directory(target); }), (folder_ / "d").string() + " exists already");
  AtomicDirectory directory(target, /*replace=*/true);
  write_file_atomic(directory.path() / "new", std::string_view("2"));
  directory.commit();
  EXPECT_FALSE(fs::exists(target / "old"));
  EXPECT_EQ(read_file(target / "new"), "2");
  EXPECT_EQ(num_entries(), 1u);
}

TEST(ReplacedTarget, IsTheNameBeforeAFolderWasMovedAside) {
  EXPECT_EQ(replaced_target(".iter_0000020.tmp-1-a-b.old"), "iter_0000020");
  EXPECT_EQ(replaced_target(".a.tmp-b.tmp-1-a-b.old"), "a.tmp-b");
  for (const char* name : {"", "iter_0000020", "iter_0000020.old", ".iter_0000020.tmp-1-a-b", ".old", ".iter.old",
                           "iter.tmp-1.old", ".iter_0000020.tmp-removed"}) {
    EXPECT_EQ(replaced_target(name), "") << name;
  }
}

TEST_F(FileTest, RemoveTreeSaysWhetherThereWasSomething) {
  write_file_atomic(folder_ / "a/b", std::string_view("x"));
  EXPECT_TRUE(remove_tree(folder_ / "a"));
  EXPECT_FALSE(remove_tree(folder_ / "a"));
}

TEST_F(FileTest, FreeSpaceIsThatOfTheNearestParent) { EXPECT_GT(free_disk_bytes(folder_ / "not/yet/there"), 0); }

}  // namespace
}  // namespace megalith
