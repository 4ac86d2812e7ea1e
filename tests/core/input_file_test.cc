// Only regular files are read: anything else a name leads to is refused with its kind, without waiting for a writer.
#include "core/input_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <thread>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "support/temporary_folder.h"

namespace megalith {
namespace {
namespace fs = std::filesystem;

class InputFileTest : public testing::Test {
 protected:
  // A read that waits for a writer would wait for ever; the alarm ends the program instead.
  void SetUp() override { ::alarm(60); }
  void TearDown() override { ::alarm(0); }

  fs::path pipe_named(const char* name) const {
    const fs::path path = folder_.path() / name;
    EXPECT_EQ(::mkfifo(path.c_str(), 0666), 0);
    return path;
  }
  static std::string refusal(const std::function<void()>& action) {
    try {
      action();
    } catch (const UserError& error) {
      return error.message();
    }
    return "accepted";
  }
  static std::string not_a_file(const fs::path& path, std::string_view kind) {
    return fmt::format("cannot read {}: it is {}, and a regular file is expected", path.string(), kind);
  }

  test::TemporaryFolder folder_;
};

TEST_F(InputFileTest, WhatIsNoFileIsRefusedWithItsKindByEveryReader) {
  const fs::path fifo = pipe_named("fifo"), link = folder_.path() / "link", socket = folder_.path() / "s";
  fs::create_symlink(fifo, link);
  const int server = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  ASSERT_LT(socket.string().size(), sizeof(address.sun_path));
  socket.string().copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(::bind(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  const std::pair<fs::path, const char*> irregular[] = {
      {fifo, "a pipe (FIFO)"}, {link, "a pipe (FIFO)"}, {socket, "a socket"}, {"/dev/zero", "a character device"}};
  for (const auto& [path, kind] : irregular) {
    const std::string expected = not_a_file(path, kind);
    EXPECT_EQ(refusal([&] { read_file(path); }), expected);
    EXPECT_EQ(refusal([&] { read_beginning(path, 10); }), expected);
    EXPECT_EQ(refusal([&] { MappedFile file(path); }), expected);
    EXPECT_EQ(refusal([&] { load_json(path); }), expected);
    EXPECT_EQ(try_read_facts(path), std::nullopt);
  }
  EXPECT_EQ(refusal([&] { read_beginning(folder_.path(), 10); }),
            "cannot read " + folder_.path().string() + ": Is a directory");
  ::close(server);
}

TEST_F(InputFileTest, APipeWithAWriterIsRefusedToo) {
  const fs::path fifo = pipe_named("fifo");
  const int both_ends = ::open(fifo.c_str(), O_RDWR | O_NONBLOCK);
  ASSERT_GE(both_ends, 0);
  ASSERT_EQ(::write(both_ends, "{}", 2), 2);
  EXPECT_EQ(refusal([&] { read_file(fifo); }), not_a_file(fifo, "a pipe (FIFO)"));
  EXPECT_EQ(refusal([&] { require_regular_file(both_ends, fifo); }), not_a_file(fifo, "a pipe (FIFO)"));
  ::close(both_ends);
}

// Between the look at the name and its opening the file may be replaced.
TEST_F(InputFileTest, AFileThatBecomesAPipeIsNotWaitedFor) {
  const fs::path path = folder_.path() / "changing", spare = pipe_named("spare");
  write_file_atomic(path, std::string_view("content"));
  std::atomic<bool> is_over = false;
  std::jthread changer([&] {
    while (!is_over) ::renameat2(AT_FDCWD, path.c_str(), AT_FDCWD, spare.c_str(), RENAME_EXCHANGE);
  });
  for (int i = 0; i < 3000; ++i) {
    const std::string found = refusal([&] { EXPECT_EQ(read_file(path), "content"); });
    EXPECT_TRUE(found == "accepted" || found == not_a_file(path, "a pipe (FIFO)")) << found;
  }
  is_over = true;
}

TEST_F(InputFileTest, WhatAPersonNamesMayBeAStream) {
  const fs::path fifo = pipe_named("fifo");
  const std::string text(300'000, 'x');  // more than a pipe holds
  std::jthread writer([&] {
    const int end = ::open(fifo.c_str(), O_WRONLY);  // waits for the reader, who waits for this
    for (size_t at = 0; at < text.size();) {
      const ssize_t count = ::write(end, text.data() + at, text.size() - at);
      if (count <= 0) break;
      at += static_cast<size_t>(count);
    }
    ::close(end);
  });
  EXPECT_TRUE(read_stream(fifo) == text);
  EXPECT_EQ(read_stream("/dev/null"), "");
  EXPECT_EQ(refusal([&] { read_stream("/dev/zero", 10); }),
            "cannot read /dev/zero: it is a character device, and a regular file, a pipe or a terminal is expected");
}

TEST_F(InputFileTest, ABoundEndsReading) {
  const fs::path path = folder_.path() / "f";
  write_file_atomic(path, std::string_view("0123456789"));
  EXPECT_EQ(read_beginning(path, 4), "0123");
  EXPECT_EQ(read_beginning(path, 10), "0123456789");
  EXPECT_EQ(read_beginning(path, 99), "0123456789");
  EXPECT_EQ(read_stream(path, 1), "0");
  EXPECT_EQ(read_beginning("/proc/self/status", 5), "Name:");
  EXPECT_EQ(try_read_facts(folder_.path() / "missing"), std::nullopt);
}

}  // namespace
}  // namespace megalith
