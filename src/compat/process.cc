#include "compat/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>

#include "core/error.h"
#include "core/file.h"
#include "core/system_call.h"

extern char** environ;

namespace megalith {
namespace {

constexpr int kNoProgram = 127;  // as in shells
constexpr int kLongestWait_ms = 1000;

// Both ends of a pipe, closed on destruction.
struct Pipe {
  int ends[2] = {-1, -1};

  Pipe() {
    if (::pipe2(ends, O_CLOEXEC) != 0) throw UserError("a pipe cannot be made: " + system_error_text(errno));
  }
  ~Pipe() {
    close_end(0);
    close_end(1);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  void close_end(int which) {
    if (ends[which] >= 0) close_descriptor(ends[which]);
    ends[which] = -1;
  }
};

// While it lives, terminating signals and SIGCHLD are read from a descriptor.
class HeldSignals {
 public:
  HeldSignals() {
    sigset_t held;
    ::sigemptyset(&held);
    for (const int signal : {SIGCHLD, SIGTERM, SIGINT}) ::sigaddset(&held, signal);
    ::pthread_sigmask(SIG_BLOCK, &held, &before_);
    descriptor_ = ::signalfd(-1, &held, SFD_CLOEXEC | SFD_NONBLOCK);
  }
  ~HeldSignals() {
    if (descriptor_ >= 0) close_descriptor(descriptor_);
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

  int descriptor() const { return descriptor_; }
  const sigset_t& before() const { return before_; }
  // The next pending signal, or 0.
  int next() const {
    signalfd_siginfo info{};
    const ssize_t got = retry_interrupted([&] { return ::read(descriptor_, &info, sizeof(info)); });
    return got == static_cast<ssize_t>(sizeof(info)) ? static_cast<int>(info.ssi_signo) : 0;
  }

 private:
  sigset_t before_{};
  int descriptor_ = -1;
};

std::vector<std::string> whole_environment(const Process& process) {
  std::vector<std::string> all;
  for (char** one = environ; *one != nullptr; ++one) {
    const std::string entry = *one;
    if (!process.environment.contains(entry.substr(0, entry.find('=')))) all.push_back(entry);
  }
  for (const auto& [name, value] : process.environment) all.push_back(name + "=" + value);
  return all;
}

std::vector<char*> pointers_of(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Returns errno; 0 if it runs.
int start(const Process& process, const sigset_t& mask, const Pipe& output, const Pipe& errors, pid_t& child) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  ::posix_spawnattr_setsigmask(&attributes, &mask);
  if (!process.has_input) ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  if (!process.output_file.empty()) {
    ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, process.output_file.c_str(),
                                       O_WRONLY | O_CREAT | O_APPEND, 0644);
    ::posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  } else if (process.captures) {
    ::posix_spawn_file_actions_adddup2(&actions, output.ends[1], STDOUT_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions, errors.ends[1], STDERR_FILENO);
  }
  std::vector<std::string> words = process.words, environment = whole_environment(process);
  const std::vector<char*> word_pointers = pointers_of(words), environment_pointers = pointers_of(environment);
  const int failed = ::posix_spawnp(&child, words[0].c_str(), &actions, &attributes, word_pointers.data(),
                                    environment_pointers.data());
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  return failed;
}

// Appends a pipe's content; closes it at its end.
void read_some(Pipe& pipe, std::string& text) {
  char block[4096];
  const ssize_t got = retry_interrupted([&] { return ::read(pipe.ends[0], block, sizeof(block)); });
  if (got > 0) {
    text.append(block, static_cast<size_t>(got));
  } else {
    pipe.close_end(0);
  }
}

// Reads the pipes as they fill and forwards signals, until the child has ended and no process holds its outputs.
int wait_for(pid_t child, const HeldSignals& signals, Pipe& output, Pipe& errors, ProcessResult& result) {
  int status = 0;
  bool has_ended = false;
  while (!has_ended || output.ends[0] >= 0 || errors.ends[0] >= 0) {
    // poll skips a descriptor below 0. Another thread may have taken SIGCHLD, hence a timeout.
    std::array<pollfd, 3> waited = {
        {{signals.descriptor(), POLLIN, 0}, {output.ends[0], POLLIN, 0}, {errors.ends[0], POLLIN, 0}}};
    retry_interrupted([&] { return ::poll(waited.data(), waited.size(), kLongestWait_ms); });
    for (int signal = signals.next(); signal != 0; signal = signals.next()) {
      if (signal != SIGCHLD && !has_ended) ::kill(child, signal);
    }
    if (!has_ended) has_ended = ::waitpid(child, &status, WNOHANG) == child;
    if (waited[1].revents != 0) read_some(output, result.output);
    if (waited[2].revents != 0) read_some(errors, result.errors);
  }
  return status;
}

}  // namespace

ProcessResult run_process(const Process& process) {
  const HeldSignals signals;
  Pipe output, errors;
  pid_t child = 0;
  if (const int failed = start(process, signals.before(), output, errors, child); failed != 0) {
    return {kNoProgram, "", fmt::format("{} cannot be started: {}", process.words[0], system_error_text(failed))};
  }
  for (Pipe* pipe : {&output, &errors}) {
    pipe->close_end(1);
    if (!process.captures || !process.output_file.empty()) pipe->close_end(0);
  }
  ProcessResult result;
  const int status = wait_for(child, signals, output, errors, result);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

}  // namespace megalith
