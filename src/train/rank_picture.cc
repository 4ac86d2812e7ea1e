#include "train/rank_picture.h"

#include <fmt/format.h>

#include "core/strings.h"

namespace megalith {
namespace {

constexpr int kMostStages = 4, kMostRanksInBrackets = 8;

// "[0 1 | 2 3]"; of many: "[0 … 15]".
std::string bracket(const Mesh& mesh, int dp, int pp) {
  const int tp = mesh.size(Axis::kTp), cp = mesh.size(Axis::kCp);
  if (tp * cp > kMostRanksInBrackets) {
    return fmt::format("[{} … {}]", mesh.rank_at(0, 0, dp, pp), mesh.rank_at(tp - 1, cp - 1, dp, pp));
  }
  std::string text;
  for (int c = 0; c < cp; ++c) {
    if (c > 0) text += " |";
    for (int t = 0; t < tp; ++t) text += fmt::format("{}{}", text.empty() ? "" : " ", mesh.rank_at(t, c, dp, pp));
  }
  return "[" + text + "]";
}

// Characters, each one column wide here.
size_t columns_in(const std::string& text) {
  size_t columns = 0;
  for (const char c : text) columns += (static_cast<unsigned char>(c) & 0xc0u) != 0x80u ? 1 : 0;
  return columns;
}

std::string stage_line(const Mesh& mesh, int pp, size_t columns) {
  std::string line = mesh.size(Axis::kPp) > 1 ? fmt::format("stage {:<2}", pp) : "ranks";
  const int num_dp = mesh.size(Axis::kDp);
  const auto place = [&](int dp) {
    return num_dp > 1 ? fmt::format("  dp{} {}", dp, bracket(mesh, dp, pp)) : "  " + bracket(mesh, dp, pp);
  };
  const std::string last = place(num_dp - 1);
  for (int dp = 0; dp < num_dp; ++dp) {
    const std::string next = place(dp);
    // Keeps room for the last one and the ellipsis before it.
    const size_t kept = dp + 1 < num_dp ? columns_in("  …") + columns_in(last) : 0;
    if (columns_in(line) + columns_in(next) + kept > columns) return line + "  …" + last;
    line += next;
  }
  return line;
}

}  // namespace

std::vector<std::string> rank_picture(const Mesh& mesh, size_t columns) {
  if (mesh.world_size() == 1) return {};
  const int num_stages = mesh.size(Axis::kPp);
  std::vector<std::string> lines;
  for (int pp = 0; pp < num_stages; ++pp) {
    if (num_stages > kMostStages && pp == kMostStages - 2) {
      lines.push_back("…");
      pp = num_stages - 1;
    }
    lines.push_back(stage_line(mesh, pp, columns));
  }
  return lines;
}

}  // namespace megalith
