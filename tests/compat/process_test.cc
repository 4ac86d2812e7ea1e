// Programs that are started: outputs, exit codes and signals.
#include "compat/process.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "compat/launch_process.h"
#include "core/file.h"
#include "support/temporary_folder.h"

namespace megalith {
namespace {

TEST(Processes, OutputsAndExitCodesComeBack) {
  const ProcessResult result =
      run_process({.words = {"sh", "-c", "echo $WORD; echo two >&2; exit 3"}, .environment = {{"WORD", "one"}}});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(result.output, "one\n");
  EXPECT_EQ(result.errors, "two\n");
  EXPECT_EQ(run_process({.words = {"sh", "-c", "kill -9 $$"}}).exit_code, 128 + 9);
}

TEST(Processes, WhatCannotBeStartedIsSaid) {
  const ProcessResult missing = run_process({.words = {"megalith-has-no-such-program"}});
  EXPECT_EQ(missing.exit_code, 127);
  EXPECT_EQ(missing.errors, "megalith-has-no-such-program cannot be started: No such file or directory");
}

TEST(Processes, AFileTakesBothOutputsBehindWhatIsThere) {
  const test::TemporaryFolder folder;
  const std::string file = folder.write("out", "zero\n").string();
  const ProcessResult result = run_process({.words = {"sh", "-c", "echo one; echo two >&2"}, .output_file = file});
  EXPECT_EQ(result.output + result.errors, "");
  EXPECT_EQ(read_file(file), "zero\none\ntwo\n");
}

TEST(Processes, MuchOutputOnBothSidesBlocksNobody) {
  const ProcessResult result =
      run_process({.words = {"sh", "-c", "head -c 300000 /dev/zero >&2; head -c 300000 /dev/zero"}});
  EXPECT_EQ(result.output.size(), 300000U);
  EXPECT_EQ(result.errors.size(), 300000U);
}

// The program sends the signal to who started it, and that is this test.
TEST(Processes, ASignalGoesToTheProgramWhoseEndIsAwaited) {
  for (const char* signal : {"TERM", "INT"}) {
    const std::string script =
        std::string("trap 'echo got; exit 7' ") + signal + "; kill -" + signal + " $PPID; while :; do sleep 0.05; done";
    const ProcessResult result = run_process({.words = {"bash", "-c", script}});
    EXPECT_EQ(result.exit_code, 7) << signal;
    EXPECT_EQ(result.output, "got\n") << signal;
    const test::TemporaryFolder folder;
    EXPECT_EQ(run_and_wait({"bash", "-c", script}, (folder.path() / "log").string()), 7) << signal;
  }
}

}  // namespace
}  // namespace megalith
