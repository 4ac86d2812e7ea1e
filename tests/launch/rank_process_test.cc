// Tells from the words of another process whether it still runs.
#include "launch/rank_process.h"

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <functional>
#include <string>

namespace megalith {
namespace {

// A process that waits; its words.
struct Child {
  explicit Child(const std::function<void()>& prepare = [] {}) {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe(ends.data()), 0);
    process = ::fork();
    if (process == 0) {
      prepare();
      const std::string own = own_process();
      [[maybe_unused]] const ssize_t count = ::write(ends[1], own.data(), own.size());
      while (true) ::pause();
    }
    char text[500];
    const ssize_t size = ::read(ends[0], text, sizeof(text));
    words.assign(text, size > 0 ? static_cast<size_t>(size) : 0);
    ::close(ends[0]);
    ::close(ends[1]);
  }
  ~Child() {
    ::kill(process, SIGKILL);
    if (!is_reaped) ::waitpid(process, nullptr, 0);
  }
  // Kills it, and waits until it has ended without asking for its exit code.
  void end() const {
    ::kill(process, SIGKILL);
    siginfo_t info{};
    ::waitid(P_PID, static_cast<id_t>(process), &info, WEXITED | WNOWAIT);
  }
  pid_t process = -1;
  bool is_reaped = false;
  std::string words;
};

TEST(RankProcess, RunsUntilItIsKilled) {
  EXPECT_EQ(state_of_process(own_process()), ProcessState::kRuns);
  Child child;
  EXPECT_EQ(state_of_process(child.words), ProcessState::kRuns);
  ::kill(child.process, SIGSTOP);
  EXPECT_EQ(state_of_process(child.words), ProcessState::kRuns);
  child.end();
  EXPECT_EQ(state_of_process(child.words), ProcessState::kEnded);
  ::waitpid(child.process, nullptr, 0);
  child.is_reaped = true;
  EXPECT_EQ(state_of_process(child.words), ProcessState::kEnded);
}

TEST(RankProcess, AnyNameIsRead) {
  const Child child([] { ::prctl(PR_SET_NAME, "a) Z 1 (b"); });
  EXPECT_EQ(state_of_process(child.words), ProcessState::kRuns);
}

TEST(RankProcess, AnotherOfTheSameNumberIsNotIt) {
  const std::string own = own_process();
  EXPECT_EQ(state_of_process(own + "0"), ProcessState::kEnded);
}

TEST(RankProcess, OtherMachinesAreNotJudged) {
  const std::string own = own_process();
  EXPECT_EQ(state_of_process("x" + own), ProcessState::kUnknown);
  for (const char* words : {"", "unknown", "a b", "a b c", "a b c d"}) {
    EXPECT_EQ(state_of_process(words), ProcessState::kUnknown) << words;
  }
}

}  // namespace
}  // namespace megalith
