#include "planner/cluster.h"

#include <algorithm>

#include "config/option.h"
#include "config/yaml_document.h"
#include "core/collect_errors.h"
#include "core/error.h"
#include "core/strings.h"

namespace megalith {
namespace {

constexpr int64_t kMostGpus = 1'000'000;

struct Form {
  std::string chip;
  int64_t gpus_per_node = 0, nodes = 1;
};

// "h200:8x16"
Form parse_form(const std::string& text) {
  const auto refuse = [&] {
    return UserError(fmt::format("cluster {} is not CHIP:GPUSxNODES", text),
                     "write h200:8x16 for 16 nodes of 8 GPUs, h200:8 for one, or FILE.yaml:8x16 for your own rates");
  };
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) throw refuse();
  Form form{.chip = text.substr(0, colon)};
  const std::string sizes = text.substr(colon + 1);
  const size_t times = sizes.find('x');
  const auto gpus = parse_integer(sizes.substr(0, times));
  const auto nodes = times == std::string::npos ? std::optional<int64_t>(1) : parse_integer(sizes.substr(times + 1));
  if (!gpus || !nodes || *gpus < 1 || *nodes < 1 || *gpus > kMostGpus || *nodes > kMostGpus / *gpus) throw refuse();
  form.gpus_per_node = *gpus;
  form.nodes = *nodes;
  return form;
}

ChipRates read_chip(const std::string& name, const YamlNode& node, std::vector<UserError>& errors) {
  ChipRates chip;
  chip.name = name;
  if (!node.is_map()) {
    errors.emplace_back(fmt::format("{}: {} has no rates", node.where, name), "write its keys below it, indented");
    return chip;
  }
  OptionSet options(chip);
  for (const auto& [key, value] : node.children) {
    Option* option = options.find(key);
    if (option == nullptr) {
      const std::string nearest = options.nearest(key);
      errors.emplace_back(fmt::format("{}: unknown rate '{}' of {}", value.where, key, name),
                          nearest.empty() ? "" : fmt::format("did you mean '{}'?", nearest));
      continue;
    }
    collect(errors, [&] { option->assign(value.written(), {OptionLayer::kFile, value.where}); });
  }
  for (const double* required : {&chip.tflops, &chip.memory_gib, &chip.memory_tb_per_s, &chip.link_gb_per_s}) {
    const Option& option = options.of(*required);
    if (!option.is_set()) {
      errors.emplace_back(fmt::format("{}: {} has no {}", node.where, name, option.name()), "every chip needs it");
    }
  }
  if (!options.of(chip.network_gb_per_s).is_set()) chip.network_gb_per_s = chip.link_gb_per_s;
  return chip;
}

}  // namespace

void ChipRates::visit(OptionVisitor& v) {
  v.group("Rates of a chip");
  v.field("tflops", tflops, "Dense products in 16 bits, of the data sheet.").unit("TFLOP/s").above(0);
  v.field("fp8_tflops", fp8_tflops, "The same in 8 bits; 0: as tflops.").unit("TFLOP/s").at_least(0);
  v.field("fp32_tflops", fp32_tflops, "The same in 32 bits; 0: as tflops.").unit("TFLOP/s").at_least(0);
  v.field("memory_gib", memory_gib, "Memory as its driver reports it.").unit("GiB").above(0);
  v.field("memory_tb_per_s", memory_tb_per_s, "Memory's speed, of the data sheet.").unit("TB/s").above(0);
  v.field("gpus_per_node", gpus_per_node, "Chips joined by the fast link.").at_least(1);
  v.field("link_gb_per_s", link_gb_per_s, "What a collective reaches between them, per GPU and direction.")
      .unit("GB/s")
      .above(0);
  v.field("network_gb_per_s", network_gb_per_s, "The same between nodes. Default: link_gb_per_s.").unit("GB/s").above(0);
  v.field("link_us", link_us, "A step of a collective over the link.").unit("µs").at_least(0);
  v.field("network_us", network_us, "The same over the network.").unit("µs").at_least(0);
  v.field("all_reduce_gb_per_s", all_reduce_gb_per_s, "The same of all_reduce; 0: as the others.")
      .unit("GB/s")
      .at_least(0);
  v.field("reduce_scatter_gb_per_s", reduce_scatter_gb_per_s, "The same of reduce_scatter; 0: as the others.")
      .unit("GB/s")
      .at_least(0);
  v.field("hidden_share", hidden_share, "Share of a collective's time that computation beside it loses.")
      .at_least(0)
      .at_most(1);
  v.field("operator_us", operator_us, "The host's time to launch an operator.").unit("µs").at_least(0);
  v.field("units", units, "What takes a product's tiles at once: SMs, CUs; 0: products have no tiles.").at_least(0);
  v.field("attention_share", attention_share, "Share of what products reach that attention reaches forward.").above(0);
  v.field("attention_backward_share", attention_backward_share, "The same backward.").above(0);
  v.field("product_share", product_share, "Share of tflops that large products reach.").above(0).at_most(1.5);
  v.field("fp8_share", fp8_share, "Share of fp8_tflops that large products reach.").above(0).at_most(1.5);
  v.field("memory_share", memory_share, "Share of memory_tb_per_s that operators reach.").above(0).at_most(1.5);
  v.field("ranks_per_core", ranks_per_core, "Ranks that took turns on a processor while the rates were measured.")
      .at_least(1);
  v.field("host_memory_gib", host_memory_gib, "A chip's share of its host's memory.").unit("GiB").at_least(0);
  v.field("host_gb_per_s", host_gb_per_s, "What offloading moves between chip and host, and the host updates.")
      .unit("GB/s")
      .above(0);
  v.field("context_gib", context_gib, "Memory of a rank beside tensors: contexts, communicators, workspaces.")
      .unit("GiB")
      .at_least(0);
  v.field("sources", sources, "Where the numbers come from.");
}

std::string Cluster::text() const {
  return fmt::format("{} {} in {} node{} of {}", world_size(), chip.name, nodes, nodes == 1 ? "" : "s", gpus_per_node);
}

std::vector<ChipRates> load_chips(const std::filesystem::path& file) {
  YamlDocument document = load_yaml(file, /*environment=*/{});
  std::vector<UserError>& errors = document.errors;
  std::vector<ChipRates> chips;
  if (errors.empty() && (!document.root.is_map() || document.root.children.empty())) {
    errors.emplace_back(fmt::format("{} names no chip", file.string()),
                        "its form is that of configs/clusters.yaml; 'megalith bench calibrate' writes one");
  }
  if (document.root.is_map()) {
    for (const auto& [name, node] : document.root.children) chips.push_back(read_chip(name, node, errors));
  }
  if (!errors.empty()) throw UserErrors(std::move(errors));
  return chips;
}

std::optional<ChipRates> find_chip(const std::string& name, const std::filesystem::path& config_root) {
  for (ChipRates& chip : load_chips(config_root / "clusters.yaml")) {
    if (chip.name == lower_case(name)) return std::move(chip);
  }
  return std::nullopt;
}

Cluster read_cluster(const std::string& text, const std::filesystem::path& config_root) {
  const Form form = parse_form(text);
  const bool is_file = form.chip.ends_with(".yaml") || form.chip.ends_with(".yml");
  Cluster cluster{.chip = {}, .nodes = form.nodes, .gpus_per_node = form.gpus_per_node, .file = config_root / "clusters.yaml"};
  if (is_file) cluster.file = form.chip;
  const std::vector<ChipRates> chips = load_chips(cluster.file);
  std::vector<std::string> names;
  for (const ChipRates& chip : chips) names.push_back(chip.name);
  if (is_file && chips.size() > 1) {
    throw UserError(fmt::format("{} has {} chips: {}", form.chip, chips.size(), join(names, ", ")),
                    "keep one in a file of its own");
  }
  const std::string wanted = is_file ? names.front() : lower_case(form.chip);
  const auto found = std::ranges::find(chips, wanted, &ChipRates::name);
  if (found == chips.end()) {
    throw UserError(fmt::format("cluster {}: no rates of {} are known", text, form.chip),
                    fmt::format("use one of {}, or a file of yours ('megalith bench calibrate')", join(names, ", ")));
  }
  cluster.chip = *found;
  if (cluster.gpus_per_node > cluster.chip.gpus_per_node) {
    throw UserError(fmt::format("cluster {}: {} has {} GPUs a node", text, wanted, cluster.chip.gpus_per_node),
                    "the first number is GPUs of a node, the second nodes");
  }
  return cluster;
}

std::string chip_yaml(const ChipRates& chip) {
  ChipRates copy = chip;
  const OptionSet options(copy);
  std::string text = fmt::format("{}:\n", yaml_scalar(chip.name));
  for (const auto& option : options.options()) {
    if (option->name() != "sources") text += fmt::format("  {}: {}\n", option->name(), option->text());
  }
  text += "  sources:\n";
  for (const std::string& source : chip.sources) text += fmt::format("    - {}\n", yaml_scalar(source));
  return text;
}

}  // namespace megalith
