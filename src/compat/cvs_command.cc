// See cvs_command.h.
#include "compat/cvs_command.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "core/error.h"
#include "core/file.h"
#include "core/system_call.h"

extern char** environ;

namespace megalith {
namespace {

constexpr int kNoProgram = 127;

// Both ends of a pipe, closed in the end.
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

// Reads two pipes as they fill, so that neither blocks the program.
void read_both(Pipe& output, Pipe& errors, CvsCommandResult& result) {
  const std::array<std::pair<Pipe*, std::string*>, 2> sources = {
      {{&output, &result.output}, {&errors, &result.errors}}};
  for (;;) {
    std::array<pollfd, 2> waited = {{{output.ends[0], POLLIN, 0}, {errors.ends[0], POLLIN, 0}}};
    if (waited[0].fd < 0 && waited[1].fd < 0) return;
    if (retry_interrupted([&] { return ::poll(waited.data(), waited.size(), -1); }) < 0) return;
    for (size_t i = 0; i < waited.size(); ++i) {
      if (waited[i].fd < 0 || waited[i].revents == 0) continue;
      char block[4096];
      const ssize_t got = retry_interrupted([&] { return ::read(waited[i].fd, block, sizeof(block)); });
      if (got > 0) {
        sources[i].second->append(block, static_cast<size_t>(got));
      } else {
        sources[i].first->close_end(0);
      }
    }
  }
}

std::vector<std::string> whole_environment(const CvsCommand& command) {
  std::vector<std::string> all;
  for (char** one = environ; *one != nullptr; ++one) {
    const std::string entry = *one;
    if (!command.environment.contains(entry.substr(0, entry.find('=')))) all.push_back(entry);
  }
  for (const auto& [name, value] : command.environment) all.push_back(name + "=" + value);
  return all;
}

std::vector<char*> pointers_of(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

CvsCommandResult run_cvs_command(const CvsCommand& command) {
  Pipe output, errors;
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  if (command.output_file.empty()) {
    ::posix_spawn_file_actions_adddup2(&actions, output.ends[1], STDOUT_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions, errors.ends[1], STDERR_FILENO);
  } else {
    ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, command.output_file.c_str(),
                                       O_WRONLY | O_CREAT | O_APPEND, 0644);
    ::posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  }
  std::vector<std::string> words = command.words, environment = whole_environment(command);
  const std::vector<char*> word_pointers = pointers_of(words), environment_pointers = pointers_of(environment);
  pid_t process = 0;
  const int failed =
      ::posix_spawnp(&process, words[0].c_str(), &actions, nullptr, word_pointers.data(), environment_pointers.data());
  ::posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) return {kNoProgram, "", fmt::format("{}: {}", words[0], system_error_text(failed))};
  output.close_end(1);
  errors.close_end(1);
  CvsCommandResult result;
  read_both(output, errors, result);
  int status = 0;
  retry_interrupted([&] { return ::waitpid(process, &status, 0); });
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

}  // namespace megalith
