// Each step of a launch is tried in its order and told; what was started is removed again, and the token is never a
// word of a command.
#include "compat/cvs_launch.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>

#include "core/file.h"
#include "core/strings.h"
#include "support/source_dir.h"
#include "support/temporary_folder.h"

namespace megalith {
namespace {

constexpr const char* kSecret = "hf_secret";

// A machine whose engine does what it should, unless a test says otherwise for the commands with some words.
class PretendMachine {
 public:
  explicit PretendMachine(const std::string& file = "mi3xx_megatron_llama_single.json") {
    const std::filesystem::path home = folder_.path() / "home";
    for (const char* node : {"machine/dev/dri", "machine/dev/kfd", "machine/dev/infiniband/rdma_cm",
                             "machine/sys/class/infiniband/bnxt_re0/node_desc", "home/.hf_token"})
      folder_.write(node, kSecret);
    write("machine/sys/class/net/ens1/operstate", "up\n");
    config = parse_cvs_config(read_file(test::source_dir() / "configs" / "cvs" / file), file, "ada");
    const std::vector<std::string> words = {"nnodes=1",
                                            "training_iterations=30",
                                            "master_address=10.0.0.1",
                                            "nic_type=thor2",
                                            "throughput_per_gpu=1",
                                            "tokens_per_gpu=1",
                                            "nccl_ib_gid_index=3",
                                            "nccl_ib_hca_list=bnxt_re0",
                                            "nccl_socket_ifname=ens1",
                                            "gloo_socket_ifname=ens1",
                                            "log_dir=" + (home / "LOG_DIR").string(),
                                            "hf_token_file=" + (home / ".hf_token").string()};
    set_cvs_values(config, words, "ada");
    config.volume_dict = {{home.string(), home.string()}};
  }

  CvsLaunched launch(const std::string& engine = "docker", const std::string& name = "single_node/llama3_1_8b/mi300x",
                     int64_t rank = 0) {
    const CvsCase of = resolve_cvs_case(config, {.name = name, .is_launch = true});
    return launch_cvs_run(
        config, of,
        {.engine = engine,
         .node_rank = rank,
         .source_root = "/src tree",
         .machine = folder_.path() / "machine",
         .resolve = [this](const std::string& host) { return std::vector<std::string>(knows_master ? 1 : 0, host); }},
        [this](const Process& command) { return run(command); });
  }

  // Answers commands that hold these words one after the other.
  void answer(const std::string& words, ProcessResult result) { answers_.emplace_back(words, std::move(result)); }

  bool has_run(const std::string& words) const { return count(words) > 0; }
  int64_t count(const std::string& words) const {
    return std::count_if(commands.begin(), commands.end(),
                         [&](const Process& one) { return join(one.words, " ").find(words) != std::string::npos; });
  }

  void write(const std::string& file, const std::string& text) { folder_.write(file, text); }

  CvsConfig config;
  std::vector<Process> commands;
  std::function<void()> during_script = [] {};
  bool knows_master = true;

 private:
  ProcessResult run(const Process& command) {
    commands.push_back(command);
    if (!command.output_file.empty()) during_script();
    const std::string words = join(command.words, " ");
    for (const auto& [part, result] : answers_) {
      if (words.find(part) != std::string::npos) return result;
    }
    if (words.find(" run -d ") != std::string::npos) is_up_ = true;
    if (words.find(" rm -f ") != std::string::npos) is_up_ = false;
    if (words.find(" ps ") != std::string::npos) return {0, is_up_ ? "megatron_llama3.1_310\n" : "", ""};
    if (words.find("df -B1") != std::string::npos) return {0, "  1B-blocks\n137438953472\n", ""};
    if (words.find("ibv_devinfo") != std::string::npos) return {0, "hca_id:\tbnxt_re0\n", ""};
    return {};
  }

  test::TemporaryFolder folder_;
  std::vector<std::pair<std::string, ProcessResult>> answers_;
  bool is_up_ = false;
};

std::vector<std::string> failed_steps(const CvsLaunched& launched) {
  std::vector<std::string> failed;
  for (const CvsFinding& one : launched.findings) {
    if (one.level == FindingLevel::kError) failed.push_back(one.check);
  }
  return failed;
}

using Steps = std::vector<std::string>;

TEST(CvsLaunch, AGoodLaunchRunsTheScriptAndRemovesItsContainer) {
  PretendMachine machine;
  const CvsLaunched launched = machine.launch();
  EXPECT_EQ(failed_steps(launched), Steps{});
  EXPECT_TRUE(launched.log.string().ends_with("LOG_DIR/megatron-logs/out-node0/training.log"));
  EXPECT_TRUE(machine.has_run("docker run -d --name megatron_llama3.1_310"));
  EXPECT_TRUE(machine.has_run("--shm-size 128G --device /dev/dri --device /dev/kfd"));
  EXPECT_FALSE(machine.has_run("pull"));
  const Process& script = *std::find_if(machine.commands.begin(), machine.commands.end(),
                                        [](const Process& one) { return !one.output_file.empty(); });
  const std::string words = join(script.words, " ");
  for (const char* part : {"-e MBS=2", "-e BS=128", "-e TE_FP8=1", "-e TOTAL_ITERS=30",
                           "megatron-logs/out-node0/run -e MEGALITH_SAVE=null", "-e MODEL_SIZE=8", "-e HF_TOKEN ",
                           "cd '/workspace/Megatron-LM' && exec bash 'examples/llama/train_llama3.sh'"}) {
    EXPECT_NE(words.find(part), std::string::npos) << part << " is not in " << words;
  }
  EXPECT_EQ(script.output_file, launched.log.string());
  EXPECT_TRUE(join(machine.commands.back().words, " ").starts_with("docker rm -f megatron_llama3.1_310"));
}

TEST(CvsLaunch, TheTokenIsNoWordOfACommandAndInNoFinding) {
  PretendMachine machine;
  const CvsLaunched launched = machine.launch();
  bool is_handed_over = false;
  for (const Process& command : machine.commands) {
    EXPECT_EQ(join(command.words, " ").find(kSecret), std::string::npos);
    const auto found = command.environment.find("HF_TOKEN");
    is_handed_over = is_handed_over || (found != command.environment.end() && found->second == kSecret);
  }
  EXPECT_TRUE(is_handed_over);
  for (const CvsFinding& one : launched.findings) EXPECT_EQ(one.found.find(kSecret), std::string::npos);
}

struct BrokenStep {
  const char* words;  // of the command that fails
  ProcessResult result;
  const char* step;
};

TEST(CvsLaunch, EachStepThatFailsIsTheFindingAndNothingIsLeftBehind) {
  const BrokenStep steps[] = {
      {" run -d ", {125, "", "no such device"}, "start"},
      {"test -e /dev/kfd", {1, "", ""}, "inside /dev/kfd"},
      {"df -B1", {0, "67108864\n", ""}, "/dev/shm"},
      {"exec bash", {1, "", ""}, "script"},
  };
  for (const BrokenStep& one : steps) {
    PretendMachine machine;
    machine.answer(one.words, one.result);
    EXPECT_EQ(failed_steps(machine.launch()), Steps{one.step});
    // What did not start is not removed, what did is.
    EXPECT_EQ(machine.has_run("rm -f"), std::string(one.step) != "start") << one.step;
  }
}

TEST(CvsLaunch, AnAbsentImageIsPulled) {
  PretendMachine machine;
  machine.answer("image inspect", {1, "", "no such image"});
  EXPECT_EQ(failed_steps(machine.launch("podman")), Steps{});
  EXPECT_TRUE(machine.has_run("podman pull rocm/megatron-lm:v25.5_py310"));
  PretendMachine offline;
  offline.answer("image inspect", {1, "", ""});
  offline.answer("pull", {1, "", "no route to host"});
  EXPECT_EQ(failed_steps(offline.launch()), Steps{"image"});
  EXPECT_FALSE(offline.has_run("run -d"));
}

TEST(CvsLaunch, AStaleContainerOfExactlyThatNameIsRemovedFirst) {
  PretendMachine machine;
  machine.answer("ps -a ", {0, "megatron_llama3.1_310\nmegatron_llama3.1_310_mine\n", ""});
  EXPECT_EQ(failed_steps(machine.launch()), Steps{});
  EXPECT_EQ(machine.count("docker rm -f megatron_llama3.1_310"), 2);
  EXPECT_FALSE(machine.has_run("_mine"));
  PretendMachine other;
  other.answer("ps -a ", {0, "megatron_llama3.1_310_mine\n", ""});
  other.launch();
  EXPECT_EQ(other.count("rm -f"), 1);
}

TEST(CvsLaunch, AContainerThatEndsAtOnceIsToldWithItsWords) {
  PretendMachine machine;
  machine.answer("docker ps --filter", {0, "", ""});
  machine.answer("docker logs", {0, "exec format error\n", ""});
  const CvsLaunched launched = machine.launch();
  EXPECT_EQ(failed_steps(launched), Steps{"up"});
  EXPECT_NE(launched.findings.back().found.find("exec format error"), std::string::npos);
}

TEST(CvsLaunch, WhatTheHostLacksIsToldBeforeAnythingStarts) {
  PretendMachine machine;
  machine.config.volume_dict.emplace_back("/no/such/folder", "/inside");
  machine.config.device_list.push_back("/dev/none");
  EXPECT_EQ(failed_steps(machine.launch()), (Steps{"host /dev/none", "host /no/such/folder"}));
  EXPECT_TRUE(machine.commands.empty());
}

TEST(CvsLaunch, AnImageWithoutMegalithIsSaidAndStillRuns) {
  PretendMachine machine;
  machine.answer("command -v megalith", {2, "", ""});
  const CvsLaunched launched = machine.launch();
  EXPECT_EQ(failed_steps(launched), Steps{});
  EXPECT_TRUE(std::any_of(launched.findings.begin(), launched.findings.end(), [](const CvsFinding& one) {
    return one.check == "program" && one.level == FindingLevel::kWarning;
  }));
}

TEST(CvsLaunch, WithoutAContainerTheScriptOfTheTreeRuns) {
  PretendMachine machine;
  EXPECT_EQ(failed_steps(machine.launch("none")), Steps{});
  ASSERT_EQ(machine.commands.size(), 1u);
  const Process& script = machine.commands[0];
  EXPECT_EQ(script.words[2], "cd '/src tree' && exec bash 'examples/llama/train_llama3.sh'");
  EXPECT_EQ(script.environment.at("TP"), "1");
  EXPECT_EQ(script.environment.at("HF_TOKEN"), kSecret);
}

TEST(CvsLaunch, NetworkCardsAreSetUpAndLookedFor) {
  const auto prepared = [](PretendMachine& machine, const std::string& nic) {
    const std::vector<std::string> words = {"nnodes=4", "nic_type=" + nic};
    set_cvs_values(machine.config, words, "ada");
  };
  const std::string name = "multi_node/llama3_1_70b/mi325", file = "mi3xx_megatron_llama_distributed.json";
  PretendMachine thor(file);
  prepared(thor, "thor2");
  const test::TemporaryFolder host;
  const std::string library = host.write("libbnxt_re-rdmav34.so", "").string();
  thor.config.volume_dict.emplace_back(library, "/lib/libbnxt_re-rdmav34.so.host");
  EXPECT_EQ(failed_steps(thor.launch("docker", name, 3)), Steps{});
  for (const char* part : {"-e NNODES=4", "-e NODE_RANK=3", "-e MASTER_ADDR=10.0.0.1", "-e NCCL_IB_HCA=bnxt_re0",
                           "-e NCCL_IB_GID_INDEX=3", "-e NCCL_DEBUG=ERROR"}) {
    EXPECT_TRUE(thor.has_run(part)) << part;
  }
  EXPECT_TRUE(thor.has_run("exec megatron_llama3.1_310 cp /lib/libbnxt_re-rdmav34.so.host /lib/libbnxt_re-rdmav34.so"));
  PretendMachine mellanox(file);
  prepared(mellanox, "cx7");
  EXPECT_EQ(failed_steps(mellanox.launch("docker", name)), Steps{"NIC"});  // its cards are bnxt_re0
  mellanox.answer("ibv_devinfo", {0, "hca_id:\tmlx5_0\n", ""});
  EXPECT_EQ(failed_steps(mellanox.launch("docker", name)), Steps{});
  PretendMachine ainic(file);
  prepared(ainic, "ainic");
  EXPECT_EQ(failed_steps(ainic.launch("docker", name)), Steps{});
  EXPECT_TRUE(ainic.has_run("-e NCCL_IB_GID_INDEX=1") && ainic.has_run("-e NCCL_IB_TC=104"));
}

// What verify_network_errors and the names of cards look at, below the machine's root.
constexpr const char* kErrors = "machine/sys/class/infiniband/bnxt_re0/ports/1/hw_counters/rx_roce_discards";

TEST(CvsLaunch, CardsAndInterfacesThatTheMachineLacksAreToldWithThoseThatItHas) {
  const std::string name = "multi_node/llama3_1_70b/mi325", file = "mi3xx_megatron_llama_distributed.json";
  PretendMachine machine(file);
  const std::vector<std::string> words = {"nnodes=4", "nic_type=ainic", "nccl_ib_hca_list==bnxt_re0:1,bnxt_re7",
                                          "nccl_socket_ifname=ens9", "gloo_socket_ifname=ens2"};
  set_cvs_values(machine.config, words, "ada");
  machine.write("machine/sys/class/net/ens2/operstate", "down\n");
  const CvsLaunched launched = machine.launch("docker", name);
  EXPECT_EQ(failed_steps(launched),
            (Steps{"nccl_ib_hca_list bnxt_re7", "nccl_socket_ifname ens9", "gloo_socket_ifname ens2"}));
  EXPECT_TRUE(machine.commands.empty());
  for (const CvsFinding& one : launched.findings) {
    if (one.check == "nccl_ib_hca_list bnxt_re7") {
      EXPECT_EQ(one.remedy, "this machine has bnxt_re0");
    } else if (one.check == "gloo_socket_ifname ens2") {
      EXPECT_EQ(one.found, "is down");
    }
  }
}

TEST(CvsLaunch, AMasterThatNobodyKnowsIsToldBeforeAnythingStarts) {
  PretendMachine machine("mi3xx_megatron_llama_distributed.json");
  const std::vector<std::string> words = {"nnodes=4", "nic_type=ainic"};
  set_cvs_values(machine.config, words, "ada");
  machine.knows_master = false;
  EXPECT_EQ(failed_steps(machine.launch("docker", "multi_node/llama3_1_70b/mi325")), Steps{"master_address"});
  EXPECT_TRUE(machine.commands.empty());
}

TEST(CvsLaunch, NetworkErrorsDuringTheRunAreErrorsWhenTheFileAsks) {
  struct Case {
    const char* asked;
    const char* after;
    Steps failed;
  };
  const Case cases[] = {
      {"True", "5", {}}, {"True", "8", {"network errors, bnxt_re0 port 1 rx_roce_discards"}}, {"False", "8", {}}};
  for (const Case& one : cases) {
    PretendMachine machine;
    const std::vector<std::string> words = {std::string("verify_network_errors=") + one.asked};
    set_cvs_values(machine.config, words, "ada");
    machine.write(kErrors, "5\n");
    machine.write("machine/sys/class/infiniband/bnxt_re0/ports/1/counters/port_rcv_data", "5\n");
    machine.during_script = [&] {
      machine.write(kErrors, one.after);
      machine.write("machine/sys/class/infiniband/bnxt_re0/ports/1/counters/port_rcv_data", "500000\n");
    };
    EXPECT_EQ(failed_steps(machine.launch()), one.failed) << one.asked << " " << one.after;
  }
}

TEST(CvsLaunch, LibrariesOfRocmDirComeFirst) {
  PretendMachine machine;
  const std::vector<std::string> words = {"rocm_dir=/opt/rocm 7"};
  set_cvs_values(machine.config, words, "ada");
  machine.launch("none");
  EXPECT_EQ(machine.commands.at(0).words[2],
            "cd '/src tree' && export LD_LIBRARY_PATH='/opt/rocm 7/lib':\"${LD_LIBRARY_PATH:-}\" && exec bash "
            "'examples/llama/train_llama3.sh'");
}

TEST(CvsLaunch, WhatHasNoEffectIsSaid) {
  PretendMachine machine;
  const std::vector<std::string> words = {"scripts_dir=/home/ada/SCRIPTS", "verify_network_errors=True"};
  set_cvs_values(machine.config, words, "ada");
  const CvsCase judged = resolve_cvs_case(machine.config, {.name = "single_node/llama3_1_8b/mi300x"});
  const std::string notes = join(judged.notes, "\n");
  EXPECT_NE(notes.find("scripts_dir has no effect"), std::string::npos) << notes;
  EXPECT_NE(notes.find("verify_network_errors has no effect here: only --launch"), std::string::npos) << notes;
}

}  // namespace
}  // namespace megalith
