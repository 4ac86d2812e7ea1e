// Today's files of CVS: a sweep's runs with their thresholds, torchtitan's lines, reports of rccl, ibperf and AGFHC.
#include "compat/cvs_sweep.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "compat/cvs_case.h"
#include "compat/cvs_judge.h"
#include "compat/cvs_suites.h"
#include "core/file.h"
#include "support/error_of.h"
#include "support/temporary_folder.h"

namespace megalith::cvs_sweep_test {  // its helpers have namesakes beside
namespace {

using Names = std::vector<std::string>;
using test::error_of;
using test::TemporaryFolder;

Names of_level(const CvsFindings& findings, FindingLevel level) {
  Names names;
  for (const CvsFinding& one : findings) {
    if (one.level == level) names.push_back(one.topic + " " + one.check);
  }
  return names;
}
Names errors_in(const CvsFindings& findings) { return of_level(findings, FindingLevel::kError); }

// Two runs of one model; `limits` are those of both cells.
struct SweepFiles {
  TemporaryFolder folder;
  Json root = Json::parse(R"({
    "schema_version": 1, "framework": "megatron_single", "gpu_arch": "MI325X", "threshold_json": "t.json",
    "config": {"log_dir": "/logs/{user-id}", "training_iterations": "10", "nnodes": "1"},
    "model_params": {"model_name": "llama3.1_8B", "tokenizer_model": "meta-llama/Llama-3.1-8B", "model_size": "8",
      "sequence_length": "8192", "recompute": "0", "fsdp": "0", "tensor_parallelism": "1",
      "pipeline_parallelism": "1", "precision": "BF16"},
    "container": {"lifetime": "per_run", "name": "box", "image": "<changeme>",
      "runtime": {"name": "docker", "args": {"volumes": ["/a:/b", "/c:/d"], "devices": ["/dev/kfd"]}}},
    "sweep": {"combinations": {
        "fp8-run": {"name": "a", "global_batch_size": "128", "micro_batch_size": "4", "precision": "FP8"},
        "bf16-run": {"name": "b", "global_batch_size": "64", "micro_batch_size": "2", "precision": "BF16"}},
      "runs": ["fp8-run", "bf16-run"]}})");
  Json thresholds = {{"_comment", "no cell"}, {"MBS=4,GBS=128,PRECISION=FP8", Json::object()},
                     {"MBS=2,GBS=64,PRECISION=BF16", Json::object()}};

  void limit(const std::string& metric, const Json& spec) {
    for (auto& [cell, limits] : thresholds.items()) {
      if (cell[0] != '_') limits["training." + metric] = spec;
    }
  }
  CvsConfig parse() const {
    write_file_atomic(folder.path() / "t.json", thresholds.dump());
    return parse_cvs_config(root.dump(), (folder.path() / "c.json").string(), "ada");
  }
  CvsCase of(const std::string& run = "fp8-run") const { return resolve_cvs_case(parse(), {.name = run}); }
};

// Ten iterations of 19 s with 6900 tokens/s, 400 TFLOP/s and 80 % of the memory; the loss by iteration.
CvsLog megatron_log(const std::function<double(int)>& loss) {
  std::string text;
  for (int i = 1; i <= 10; ++i) {
    text += fmt::format(
        " iteration {:8d}/      10 | elapsed time per iteration (ms): 19000.0 | mem usages: 0.8000 | throughput per "
        "GPU (TFLOP/s/GPU): 400.0 | tokens/GPU/s: 6900.0 | global batch size:   128 | lm loss: {:.6E} | grad norm: "
        "1.250 |\n",
        i, loss(i));
  }
  return parse_cvs_log(text, "x.log");
}
double falling(int iteration) { return 12 - 0.1 * iteration; }

TEST(CvsSweep, ARunIsItsModelAndItsCombination) {
  SweepFiles files;
  files.limit("mem_usage", {{"kind", "max"}, {"value", 0.85}});
  const CvsConfig config = files.parse();
  ASSERT_TRUE(config.sweep);
  EXPECT_TRUE(config.warnings.empty()) << config.warnings.front();
  EXPECT_EQ(config.sweep->runs, (Names{"fp8-run", "bf16-run"}));
  EXPECT_EQ(*config.config.find("container_name"), "box");
  EXPECT_EQ(*config.config.find("log_dir"), "/logs/ada");
  EXPECT_EQ(config.volume_dict.size(), 2u);
  const CvsCase fp8 = files.of(), bf16 = files.of("bf16-run");
  EXPECT_EQ(fp8.name(), "single_node/llama3_1_8b/fp8_run");
  EXPECT_EQ(std::tuple(fp8.batch_size, fp8.micro_batch_size, fp8.is_fp8), std::tuple(128, 4, true));
  EXPECT_EQ(std::tuple(bf16.batch_size, bf16.micro_batch_size, bf16.is_fp8), std::tuple(64, 2, false));
  ASSERT_EQ(fp8.bounds.size(), 1u);
  EXPECT_NE(error_of([&] { resolve_cvs_case(config, {}); }).find("fp8_run"), std::string::npos);
}

// CVS's kinds: what holds, and what does not.
TEST(CvsSweep, EachKindOfThresholdIsJudged) {
  const std::tuple<const char*, Json, bool> rows[] = {
      {"tokens_per_gpu", {{"kind", "min"}, {"value", 6900}}, true},
      {"tokens_per_gpu", {{"kind", "min_tok_s"}, {"value", 6901}}, false},
      {"elapsed_time_per_iteration", {{"kind", "max_ms"}, {"value", 19000}}, true},
      {"elapsed_time_per_iteration", {{"kind", "max"}, {"value", 18999}}, false},
      {"mem_usage", {{"kind", "within"}, {"value", 0.84}, {"tolerance_pct", 5}}, true},
      {"mem_usage", {{"kind", "within"}, {"value", 0.9}, {"tolerance_pct", 5}}, false},
      {"tokens_per_gpu", {{"kind", "min_ratio"}, {"value", 17}, {"reference", "training.throughput_per_gpu"}}, true},
      {"tokens_per_gpu", {{"kind", "min_ratio"}, {"value", 18}, {"reference", "training.throughput_per_gpu"}}, false},
      {"mem_usage", {{"kind", "info"}, {"value", 0.1}}, true}};
  for (const auto& [metric, spec, holds] : rows) {
    SweepFiles files;
    files.limit(metric, spec);
    const CvsCase of = files.of();
    const Names expected = holds ? Names{} : Names{std::string("performance ") + metric};
    const CvsLog log = megatron_log(falling);
    EXPECT_EQ(errors_in(judge_performance(of, log.steps, {})), expected) << metric << " " << spec.dump();
    EXPECT_EQ(errors_in(judge_as_upstream(of, log)), expected) << metric << " " << spec.dump();
    files.root["enforce_thresholds"] = false;
    EXPECT_EQ(errors_in(judge_performance(files.of(), log.steps, {})), Names{}) << "only recorded";
  }
}

TEST(CvsSweep, TheLossCurveIsGatedAtItsSteps) {
  SweepFiles files;
  const auto verdict = [&](const std::function<double(int)>& loss) {
    return errors_in(judge_convergence(megatron_log(loss).steps, files.of()));
  };
  EXPECT_EQ(verdict(falling), Names{});
  EXPECT_EQ(verdict([](int i) { return 9 + 0.1 * i; }), Names{"convergence loss curve"});
  // Only the first, the last and the milestones count: a dip at step 5 does not help.
  const auto dips = [](int i) { return i == 1 ? 9.0 : i == 5 ? 1.0 : 9.5; };
  EXPECT_EQ(verdict(dips), Names{"convergence loss curve"});
  files.root["loss_curve"] = {{"sample_every", 10}, {"milestone_steps", {5}}, {"max_slope", 0.2}};
  EXPECT_EQ(verdict(dips), Names{});
  files.root["loss_curve"] = {{"enforce", false}};
  EXPECT_EQ(verdict(dips), Names{});
  EXPECT_EQ(of_level(judge_convergence(megatron_log(dips).steps, files.of()), FindingLevel::kNote),
            Names{"convergence loss curve"});
}

TEST(CvsSweep, WhatDoesNotFitIsRefused) {
  const std::pair<const char*, std::function<void(SweepFiles&)>> rows[] = {
      {"schema_version is 2", [](SweepFiles& f) { f.root["schema_version"] = 2; }},
      {"framework is nemo", [](SweepFiles& f) { f.root["framework"] = "nemo"; }},
      {"it measures a server of models", [](SweepFiles& f) { f.root["framework"] = "vllm"; }},
      {"JAX and MaxText", [](SweepFiles& f) { f.root["framework"] = "jaxmaxtext"; }},
      {"none of sweep.combinations", [](SweepFiles& f) { f.root["sweep"]["runs"].push_back("fp4-run"); }},
      {"no thresholds for MBS=2,GBS=64,PRECISION=BF16",
       [](SweepFiles& f) { f.thresholds.erase("MBS=2,GBS=64,PRECISION=BF16"); }},
      {"no run for MBS=9", [](SweepFiles& f) { f.thresholds["MBS=9"] = Json::object(); }},
      {"framework is rccl", [](SweepFiles& f) { f.root["framework"] = "rccl"; }},
      {"config is no object", [](SweepFiles& f) { f.root["config"] = 5; }},
      {"t.json is no object", [](SweepFiles& f) { f.thresholds = {1, 2}; }},
      {"num_nodes is 0", [](SweepFiles& f) { f.root["scaling_baseline"] = {{"num_nodes", 0}}; }},
      {"\"value\" is missing", [](SweepFiles& f) { f.limit("mem_usage", {{"kind", "max"}}); }},
      {"kind is most", [](SweepFiles& f) { f.limit("mem_usage", {{"kind", "most"}, {"value", 1}}); }}};
  for (const auto& [part, change] : rows) {
    SweepFiles files;
    change(files);
    EXPECT_NE(error_of([&] { files.parse(); }).find(part), std::string::npos) << part;
  }
  SweepFiles lenient;
  lenient.root["enforce_thresholds"] = false;
  lenient.root["colour"] = "red";
  lenient.root["sweep"]["combinations"]["fp8-run"]["result_dict"] = Json::object();
  lenient.thresholds["MBS=9"] = Json::object();
  lenient.thresholds["MBS=4,GBS=128,PRECISION=FP8"]["training.mem_usage"] = {{"kind", "info"}, {"optional", true}};
  EXPECT_EQ(lenient.parse().warnings.size(), 4u);
  EXPECT_NE(error_of([&] {
              resolve_cvs_case(lenient.parse(), {.name = "fp8-run", .is_launch = true});
            }).find("container_image still has <changeme>"),
            std::string::npos);
}

// Colors, thousands and validation as torchtitan prints them; its thresholds count tokens/s and loss.
TEST(CvsSweep, TorchtitansLinesAndNames) {
  std::string text;
  for (const int step : {1, 10}) {
    text += fmt::format(
        "[rank0]:[titan] 2026-08-01 10:00:00,000 - root - INFO - \x1b[31mstep: {:2}  \x1b[32mloss: {:8.4f}  "
        "\x1b[38;2;180;60;0mgrad_norm:  1.2500  \x1b[38;2;54;234;195mmemory: 150.00GiB(52.10%)  \x1b[34mtps: {}  "
        "\x1b[36mtflops: 600.10  \x1b[35mmfu: 24.00%\x1b[39m\n",
        step, 12 - 0.1 * step, step == 1 ? "900" : "11,767");
  }
  text += "[rank0]:[titan] 2026-08-01 10:00:01,000 - root - INFO - validate step: 10  loss: 1.0  tps: 1\n";
  const CvsLog log = parse_cvs_log(text, "titan.log");
  ASSERT_EQ(log.steps.size(), 2u);
  EXPECT_DOUBLE_EQ(*log.steps[1].tokens_per_s, 11767);
  EXPECT_DOUBLE_EQ(*log.steps[1].memory_fraction, 0.521);
  EXPECT_DOUBLE_EQ(*log.steps[1].loss, 11);

  SweepFiles files;
  files.root["framework"] = "torchtitan_single";
  files.root["model_params"] = Json::parse(R"({"model_name": "llama3_1_8b", "hf_model_name": "m/L", "lr": "3e-4",
      "sequence_length": "8192", "tensor_parallel_degree": "2", "pipeline_parallel_degree": "1"})");
  files.limit("throughput_per_gpu", {{"kind", "min"}, {"value", 11767}});
  files.limit("tokens_per_gpu", {{"kind", "min"}, {"value", 11767 * 128}});
  files.limit("loss", {{"kind", "max"}, {"value", 11.5}});
  EXPECT_TRUE(files.parse().warnings.empty());
  const CvsCase of = files.of();
  EXPECT_EQ(of.tensor_parallelism, 2);
  EXPECT_EQ(errors_in(judge_performance(of, log.steps, {})), Names{});
  EXPECT_EQ(errors_in(judge_convergence(log.steps, of)), Names{});
  files.limit("throughput_per_gpu", {{"kind", "min"}, {"value", 11768}});
  files.limit("loss", {{"kind", "max"}, {"value", 10.9}});
  EXPECT_EQ(errors_in(judge_performance(files.of(), log.steps, {})),
            (Names{"performance tokens_per_gpu", "performance loss"}));
  // CVS looks its own names up in what torchtitan printed, and finds none.
  EXPECT_EQ(errors_in(judge_as_upstream(files.of(), log)).size(), 3u);
}

TEST(CvsSweep, ScalingCountsTokensOverTheBaseline) {
  SweepFiles files;
  files.root["framework"] = "megatron_distributed";
  files.root["config"]["nnodes"] = "2";
  files.limit("scaling_efficiency_pct", {{"kind", "min"}, {"value", 90}});
  const CvsLog log = megatron_log(falling);
  EXPECT_EQ(errors_in(judge_performance(files.of(), log.steps, {})), Names{}) << "no baseline";
  files.root["scaling_baseline"] = {{"tokens_per_sec_total", 8 * 7000.0}, {"num_nodes", 1}};
  EXPECT_EQ(errors_in(judge_performance(files.of(), log.steps, {})), Names{});
  files.root["scaling_baseline"]["tokens_per_sec_total"] = 8 * 8000.0;
  EXPECT_EQ(errors_in(judge_performance(files.of(), log.steps, {})), Names{"performance scaling_efficiency_pct"});
}

struct Reports {
  TemporaryFolder folder;
  Names files;
  void add(const std::string& name, const std::string& text) {
    write_file_atomic(folder.path() / name, text);
    files.push_back((folder.path() / name).string());
  }
  CvsFindings judge(const Json& root) const {
    const CvsSuite* suite = suite_of_file(root, "c.json");
    return judge_cvs_suite(*suite, root, "c.json", files).findings;
  }
};

Json rccl_row(int64_t size, double bus, double time, int in_place = 1, const char* name = "AllReduce") {
  return {{"numCycle", 0}, {"name", name},   {"size", size},         {"type", "float"}, {"redop", "sum"},
          {"time", time},  {"busBw", bus},   {"inPlace", in_place}, {"algBw", bus},    {"wrong", 0},
          {"nodes", 2},    {"ranks", 16},    {"ranksPerNode", 8},   {"gpusPerRank", 1}};
}

TEST(CvsSuites, BandwidthsOfRcclAreJudgedBySize) {
  Json root = Json::parse(R"({"rccl": {"cvs_params": {"verify_bus_bw": "True", "nic_model": "thor"},
      "results": {"all_reduce_perf": {"bus_bw": {"1024": "100.00", "2048": "200.0"}},
                  "alltoall_perf": {"bus_bw": {"1024": "50"}}}}})");
  const auto judged = [&](const Json& rows) {
    Reports reports;
    reports.add("r.json", rows.dump());
    return errors_in(reports.judge(root));
  };
  // Five percent less passes; out of place counts only for alltoall; cycles are averaged.
  EXPECT_EQ(judged({rccl_row(1024, 95, 10), rccl_row(2048, 150, 12), rccl_row(2048, 250, 12), rccl_row(1024, 1, 10, 0),
                    rccl_row(1024, 50, 9, 0, "AlltoAll"), rccl_row(1024, 1, 9, 1, "AlltoAll")}),
            Names{});
  EXPECT_EQ(judged({rccl_row(1024, 94, 10), rccl_row(2048, 200, 12), rccl_row(1024, 47, 9, 0, "AlltoAll")}),
            (Names{"performance allreduce float of 1024 bytes", "performance alltoall float of 1024 bytes"}));
  EXPECT_EQ(judged({rccl_row(1024, 300, 10), rccl_row(2048, 250, 9)}),
            (Names{"performance allreduce float of 2048 bytes, dip",
                   "performance allreduce float of 2048 bytes, time"}));
  Json corrupt = rccl_row(1024, 100, 10);
  corrupt["wrong"] = 3;
  corrupt["ranks"] = 8;
  EXPECT_EQ(judged(Json::array({corrupt})).size(), 2u);
  root["rccl"]["cvs_params"]["verify_bus_bw"] = "False";
  EXPECT_EQ(judged(Json::array({rccl_row(1024, 1, 10)})), Names{});
  // The form that its tests look up: under the NIC, with types and ranks.
  root["rccl"].erase("results");
  root["rccl"]["cvs_params"]["verify_bus_bw"] = "True";
  root["rccl"]["cvs_params"]["results"] =
      Json::parse(R"({"thor": {"all_reduce_perf-float-16": {"1024": {"bus_bw": "101"}}}})");
  EXPECT_EQ(judged(Json::array({rccl_row(1024, 90, 10)})), Names{"performance allreduce float of 1024 bytes"});
  Json half = rccl_row(1024, 90, 10);
  half["type"] = "half";
  EXPECT_EQ(judged(Json::array({half})), Names{}) << "the threshold is of another type";
  Reports printed;
  printed.add("out.txt", "node1: NCCL WARN slow\nTest failure common.cu:1\n");
  EXPECT_EQ(errors_in(printed.judge(root)), (Names{"results log", "results complete"}));
}

TEST(CvsSuites, PerftestIsJudgedByTestSizeAndQueuePairs) {
  const Json root = Json::parse(R"({"ibperf": {"verify_bw": "True", "expected_results": {
      "ib_write_bw": {"8192": {"8": "180.0", "16": "200.0"}}, "ib_send_lat": {"2": "3.0"}}}})");
  const auto bandwidth = [](double average, int qps, const char* more = "") {
    return fmt::format(
        "allocated 65536 bytes of GPU buffer at 0x7f\n                    RDMA_Write Bidirectional BW Test\n"
        " Number of qps   : {}\t\tTransport type : IB\n #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]"
        "   MsgRate[Mpps]\n 8192       125000           0.00               {:.2f}            3.06\n{}",
        qps, average, more);
  };
  const std::string latency =
      "allocated 65536 bytes of GPU buffer at 0x7f\n                    Send Latency Test\n"
      " 2       1000     2.80     9.00     3.00     3.10     0.10     3.50     8.00\n";
  Reports good;
  good.add("a", bandwidth(180.5, 8));
  good.add("b", bandwidth(1, 4));  // no threshold
  EXPECT_EQ(errors_in(good.judge(root)), Names{});
  EXPECT_EQ(of_level(good.judge(root), FindingLevel::kNote),
            (Names{"performance ib_write_bw of 8192 bytes, 4 QPs", "performance ib_send_lat"}));
  Reports bad;
  bad.add("a", bandwidth(199, 16, "Couldn't initialize ROCm device\n"));
  bad.add("b", latency);
  EXPECT_EQ(errors_in(bad.judge(root)), (Names{"results log", "performance ib_write_bw of 8192 bytes, 16 QPs",
                                               "performance ib_send_lat of 2 bytes"}));
  Reports none;
  none.add("a", "hello\n");
  EXPECT_NE(error_of([&] { none.judge(root); }).find("no report of perftest"), std::string::npos);
}

TEST(CvsSuites, AgfhcMustSayThatItSucceeded) {
  const Json root = Json::parse(R"({"agfhc": {"path": "/opt"}, "rvs": {}})");
  const auto judged = [&](const std::string& text) {
    Reports reports;
    reports.add("r", text);
    return errors_in(reports.judge(root));
  };
  EXPECT_EQ(judged("hbm passed\nreturn code AGFHC_SUCCESS\n"), Names{});
  EXPECT_EQ(judged("[node1:7] hbm passed\nreturn code AGFHC_SUCCESS\n"), Names{});
  EXPECT_EQ(judged("hbm failed\nreturn code AGFHC_SUCCESS\n"), Names{"results log"});
  EXPECT_EQ(judged("stopped\n"), Names{"results success"});
  EXPECT_EQ(judged(R"({"summary": {"total_failed": 0, "total_passed": 3}})"), Names{});
  EXPECT_EQ(judged(R"({"summary": {"total_failed": 1}})"), Names{"results total_failed"});
  EXPECT_EQ(judged(R"({"a": {"total_failed": 0}, "b": {"total_failed": 2}})"), Names{"results total_failed"});
  EXPECT_EQ(judged("{}"), Names{"results total_failed"});
  EXPECT_NE(error_of([] { suite_of_file(Json::parse(R"({"preflight": {}})"), "p.json"); }).find("megalith doctor"),
            std::string::npos);
}

}  // namespace
}  // namespace megalith::cvs_sweep_test
