// Rank discovery: what every launcher sets, and what cannot be.
#include "launch/launch.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace megalith {
namespace {

EnvironmentMap with(EnvironmentMap base, const EnvironmentMap& more) {
  for (const auto& [name, value] : more) base[name] = value;
  return base;
}

EnvironmentMap without(EnvironmentMap base, const std::string& name) {
  base.erase(name);
  return base;
}

// Rank 5 of 8, the second of two machines.
const EnvironmentMap kTorchrun = {{"RANK", "5"},
                                  {"WORLD_SIZE", "8"},
                                  {"LOCAL_RANK", "1"},
                                  {"LOCAL_WORLD_SIZE", "4"},
                                  {"MASTER_ADDR", "gpu1"},
                                  {"MASTER_PORT", "29501"},
                                  {"TORCHELASTIC_RUN_ID", "none"},
                                  {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                  {"TORCHELASTIC_RESTART_COUNT", "2"}};
const EnvironmentMap kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                                 {"OMPI_COMM_WORLD_SIZE", "2"},
                                 {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                 {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                 {"PMIX_NAMESPACE", "1234@1"}};
const EnvironmentMap kSlurm = {{"SLURM_JOB_ID", "77"},
                               {"SLURM_STEP_ID", "0"},
                               {"SLURM_PROCID", "6"},
                               {"SLURM_NTASKS", "7"},
                               {"SLURM_STEP_NUM_TASKS", "7"},
                               {"SLURM_LOCALID", "0"},
                               {"SLURM_NODEID", "3"},
                               {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"},
                               {"SLURM_STEP_NODELIST", "gpu[003-005,9]"}};

std::string error_of(const EnvironmentMap& environment) {
  try {
    discover_launch(environment);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(Launch, NothingSetIsAWorldOfOne) {
  const Launch launch = discover_launch({{"PATH", "/bin"}});
  EXPECT_EQ(launch.launcher, Launcher::kNone);
  EXPECT_EQ(launch.world_size, 1);
  EXPECT_EQ(launch.rank, 0);
  EXPECT_EQ(launch.local_world_size, 1);
}

TEST(Launch, ReadsTorchrun) {
  const Launch launch = discover_launch(kTorchrun);
  EXPECT_EQ(launch.launcher, Launcher::kTorchrun);
  EXPECT_EQ(launch.rank, 5);
  EXPECT_EQ(launch.world_size, 8);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.local_world_size, 4);
  EXPECT_EQ(launch.master_address, "gpu1");
  EXPECT_EQ(launch.master_port, 29501);
  EXPECT_TRUE(launch.has_agent_store);
  EXPECT_EQ(launch.restart_count, 2);
  EXPECT_FALSE(launch.is_one_machine());
  EXPECT_FALSE(discover_launch(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}})).has_agent_store);
}

TEST(Launch, AWorldOfOneNeedsOnlyItsSize) {
  const Launch launch = discover_launch({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
  EXPECT_EQ(launch.world_size, 1);
  EXPECT_EQ(launch.local_rank, 0);
}

TEST(Launch, ReadsOpenMpi) {
  const Launch launch = discover_launch(kOpenMpi);
  EXPECT_EQ(launch.launcher, Launcher::kOpenMpi);
  EXPECT_EQ(launch.rank, 1);
  EXPECT_EQ(launch.world_size, 2);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.master_address, "127.0.0.1");
  EXPECT_FALSE(launch.has_agent_store);
  EXPECT_TRUE(launch.is_one_machine());
}

TEST(Launch, RunsOfOneMachineMeetAtDifferentPorts) {
  const int port = discover_launch(kOpenMpi).master_port;
  EXPECT_GE(port, 20000);
  EXPECT_LT(port, 32768);
  EXPECT_EQ(discover_launch(with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "0"}})).master_port, port);
  EXPECT_NE(discover_launch(with(kOpenMpi, {{"PMIX_NAMESPACE", "1235@1"}})).master_port, port);
  EXPECT_EQ(discover_launch(with(kOpenMpi, {{"MASTER_PORT", "4000"}})).master_port, 4000);
  EXPECT_EQ(discover_launch(without(kOpenMpi, "PMIX_NAMESPACE")).master_port, 29500);
}

TEST(Launch, ReadsSlurm) {
  const Launch launch = discover_launch(kSlurm);
  EXPECT_EQ(launch.launcher, Launcher::kSlurm);
  EXPECT_EQ(launch.rank, 6);
  EXPECT_EQ(launch.world_size, 7);
  EXPECT_EQ(launch.local_rank, 0);
  EXPECT_EQ(launch.local_world_size, 1);
  EXPECT_EQ(launch.master_address, "gpu003");
  const EnvironmentMap third = {{"SLURM_PROCID", "5"}, {"SLURM_NODEID", "2"}, {"SLURM_LOCALID", "1"}};
  EXPECT_EQ(discover_launch(with(kSlurm, third)).local_world_size, 2);
  EXPECT_EQ(discover_launch(with(kSlurm, third)).master_port, launch.master_port);
}

TEST(Launch, ABatchScriptWithoutSrunIsAWorldOfOne) {
  EXPECT_EQ(discover_launch(without(kSlurm, "SLURM_STEP_ID")).launcher, Launcher::kNone);
}

TEST(Launch, TheInnermostLauncherCounts) {
  EXPECT_EQ(discover_launch(with(kSlurm, kTorchrun)).rank, 5);  // srun torchrun
  EXPECT_EQ(discover_launch(with(kSlurm, kOpenMpi)).launcher, Launcher::kOpenMpi);
  // A script that passes another launcher's numbers on.
  const EnvironmentMap copied = {
      {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}, {"MASTER_PORT", "1"}, {"MASTER_ADDR", "127.0.0.1"}};
  EXPECT_EQ(discover_launch(with(kOpenMpi, copied)).launcher, Launcher::kTorchrun);
}

TEST(Launch, FirstHostOfSlurmsLists) {
  EXPECT_EQ(first_slurm_host("login"), "login");
  EXPECT_EQ(first_slurm_host("a,b"), "a");
  EXPECT_EQ(first_slurm_host("gpu[003-007,9],login"), "gpu003");
  EXPECT_EQ(first_slurm_host("gpu[9,003-007]"), "gpu9");
  EXPECT_EQ(first_slurm_host("rack[1-2]node[01-04]-ib"), "rack1node01-ib");
  EXPECT_THROW(first_slurm_host("gpu[003-007"), UserError);
  EXPECT_THROW(first_slurm_host(""), UserError);
}

TEST(LaunchErrors, NameTheVariableAndTheContradiction) {
  const std::vector<std::pair<EnvironmentMap, std::string>> cases = {
      {without(kTorchrun, "RANK"), "RANK is not set, but WORLD_SIZE is"},
      {without(kTorchrun, "WORLD_SIZE"), "WORLD_SIZE is not set, but RANK is"},
      {without(kTorchrun, "LOCAL_RANK"), "LOCAL_RANK is not set, but WORLD_SIZE is 8"},
      {without(kTorchrun, "MASTER_ADDR"), "MASTER_ADDR is not set, but the 8 ranks must know where to meet"},
      {without(kTorchrun, "MASTER_PORT"), "MASTER_PORT is not set"},
      {with(kTorchrun, {{"RANK", "five"}}), "RANK is 'five', not a number"},
      {with(kTorchrun, {{"RANK", "-1"}}), "RANK is '-1', not a number"},
      {with(kTorchrun, {{"WORLD_SIZE", "99999999999"}}), "WORLD_SIZE is '99999999999', not a number"},
      {with(kTorchrun, {{"RANK", "8"}}), "rank 8 of 8"},
      {with(kTorchrun, {{"LOCAL_RANK", "4"}}), "local rank 4 of 4 on this machine"},
      {with(kTorchrun, {{"LOCAL_WORLD_SIZE", "9"}}), "9 ranks on this machine, and 8 in all"},
      {with(kTorchrun, {{"MASTER_PORT", "70000"}}), "port 70000"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "0"}}, "the world has 0 ranks"},
      {without(kOpenMpi, "OMPI_COMM_WORLD_RANK"), "OMPI_COMM_WORLD_RANK is not set"},
      {with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}}),
       "mpirun started 2 ranks, 1 of them on this machine, and MASTER_ADDR is not set"},
      {with(kOpenMpi, {{"RANK", "0"}, {"WORLD_SIZE", "1"}}),
       "RANK 0 and WORLD_SIZE 1 contradict mpirun, which started this as rank 1 of 2"},
      {with(kSlurm, {{"RANK", "0"}, {"WORLD_SIZE", "1"}}), "contradict srun"},
      {without(kSlurm, "SLURM_LOCALID"), "SLURM_LOCALID is not set"},
      {without(kSlurm, "SLURM_STEP_NODELIST"), "SLURM_STEP_NODELIST is not set"},
      {with(kSlurm, {{"SLURM_NODEID", "4"}}), "says nothing of node 4"},
      {with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "2(x3"}}), "'2(x3'"},
      {with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "two"}}), "'two'"},
  };
  for (const auto& [environment, expected] : cases) {
    const std::string error = error_of(environment);
    EXPECT_NE(error.find(expected), std::string::npos) << "expected: " << expected << "\nfound: " << error;
    EXPECT_NE(error.find('\n'), std::string::npos) << "no remedy: " << error;
  }
}

std::string nodes_error(const EnvironmentMap& environment) {
  try {
    check_num_nodes(discover_launch(environment), environment);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(LaunchErrors, SeveralMachinesThatWouldTrainAlone) {
  const EnvironmentMap nodes = {{"NNODES", "2"}, {"NODE_RANK", "0"}};
  EXPECT_NE(nodes_error(nodes).find("NNODES is 2 and NODE_RANK is set, but no launcher has started this process"),
            std::string::npos);
  const EnvironmentMap one_machine = {{"LOCAL_WORLD_SIZE", "8"}};
  EXPECT_NE(nodes_error(with(with(kTorchrun, one_machine), nodes)).find("torchrun started all 8 ranks on this machine"),
            std::string::npos);
  EXPECT_NE(nodes_error(with(kOpenMpi, nodes)).find("mpirun started all 2 ranks on this machine"), std::string::npos);
  EXPECT_EQ(nodes_error(with(kTorchrun, nodes)), "");
  EXPECT_EQ(nodes_error(with(without(kTorchrun, "LOCAL_WORLD_SIZE"), nodes)), "") << "nobody knows";
  EXPECT_EQ(nodes_error(with(nodes, {{"NNODES", "1"}})), "");
  EXPECT_EQ(nodes_error(with(nodes, {{"NNODES", "1:4"}})), "");
  EXPECT_EQ(nodes_error(without(nodes, "NODE_RANK")), "");
}

}  // namespace
}  // namespace megalith
