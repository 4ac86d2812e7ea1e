// Pipelines as text.
#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "planner/pipeline_picture.h"
#include "planner/pipeline_scale.h"

namespace megalith {
namespace {

// Ranks' full lines, equally long.
class TextLines {
 public:
  // cell  characters per unit of time
  TextLines(const PipelineTrace& trace, const PictureScale& scale, int cell) : cell_(cell) {
    const double start = trace.start(), whole = trace.makespan();
    const auto length = static_cast<size_t>(cell) * static_cast<size_t>(scale.num_units);
    const auto column = [&](double time) {
      const double share = whole > 0 ? (time - start) / whole : 0;
      return static_cast<size_t>(std::lround(std::clamp(share, 0.0, 1.0) * static_cast<double>(length)));
    };
    for (const std::vector<TimedAction>& actions : trace.ranks) {
      std::string line(length, ' ');
      for (size_t i = 0; i < length; i += static_cast<size_t>(cell)) line[i] = '.';
      for (const TimedAction& timed : actions) {
        if (is_communication(timed.action.kind)) continue;
        draw(line, column(timed.start), column(timed.end), box_label(timed.action, trace.shape));
      }
      lines_.push_back(std::move(line));
    }
  }

  const std::vector<std::string>& lines() const { return lines_; }

 private:
  // Columns [begin, end): label, dashes, a blank.
  static void draw(std::string& line, size_t begin, size_t end, const std::string& label) {
    if (begin >= end) return;
    const size_t filled = std::max<size_t>(end - begin - 1, 1);
    std::string box = label.substr(0, filled);
    box.append(filled - box.size(), '-');
    box.append(end - begin - filled, ' ');
    line.replace(begin, end - begin, box);
  }

  int cell_;
  std::vector<std::string> lines_;
};

// Above their columns, as often as they fit.
std::string ruler(int first_unit, int num_units, int cell) {
  std::string line;
  const int step = cell >= 5 ? 2 : 5;
  for (int unit = first_unit; unit < first_unit + num_units; ++unit) {
    if (unit % step != 0) continue;
    const auto column = static_cast<size_t>((unit - first_unit) * cell);
    if (column < line.size() + (line.empty() ? 0 : 1)) continue;
    line.append(column - line.size(), ' ');
    line += fmt::format("{}", unit);
  }
  return line;
}

std::string draw_text(const PipelineTrace& trace, const PictureScale& scale, size_t columns) {
  size_t label = 0;
  for (const std::vector<TimedAction>& actions : trace.ranks) {
    for (const TimedAction& timed : actions) {
      if (is_communication(timed.action.kind)) continue;
      label = std::max(label, box_label(timed.action, trace.shape).size());
    }
  }
  const int cell = static_cast<int>(label) + 1;
  const TextLines text(trace, scale, cell);
  const auto num_ranks = static_cast<size_t>(trace.shape.num_ranks);
  std::vector<std::string> heads, tails;
  size_t head_width = 0, tail_width = 0;
  for (size_t rank = 0; rank < num_ranks; ++rank) {
    heads.push_back(fmt::format("rank {:<{}}  ", rank, fmt::formatted_size("{}", num_ranks - 1)));
    tails.push_back(fmt::format(" bubble {:4.1f} %  peak {}", 100 * trace.bubble_fraction(static_cast<int>(rank)),
                                trace.peak_live(static_cast<int>(rank))));
    head_width = std::max(head_width, heads.back().size());
    tail_width = std::max(tail_width, tails.back().size());
  }
  const size_t room = columns > head_width + tail_width ? columns - head_width - tail_width : 1;
  const int band = std::max(static_cast<int>(room) / cell, 1);  // units per line
  std::string result;
  for (int unit = 0; unit < scale.num_units; unit += band) {
    const int count = std::min(band, scale.num_units - unit);
    const bool is_end = unit + count == scale.num_units;
    if (unit > 0) result += "\n";
    result += std::string(head_width, ' ') + ruler(unit, count, cell) + "\n";
    for (size_t rank = 0; rank < num_ranks; ++rank) {
      std::string line =
          heads[rank] + text.lines()[rank].substr(static_cast<size_t>(unit) * static_cast<size_t>(cell),
                                                  static_cast<size_t>(count) * static_cast<size_t>(cell));
      if (is_end) line += tails[rank];
      line.erase(line.find_last_not_of(' ') + 1);
      result += line + "\n";
    }
  }
  return result;
}

}  // namespace

std::string pipeline_text(const PipelineTrace& simulated, const PipelineTrace* measured, int columns) {
  const auto width = static_cast<size_t>(std::max(columns, 1));
  const PictureScale scale = picture_scale(simulated);
  const int chunks = simulated.shape.num_chunks;
  const std::string_view letters = chunks == 1   ? ""
                                   : chunks == 2 ? "capitals: a rank's first stage, small letters: its second\n"
                                                 : "before the point: which of a rank's stages\n";
  std::string result = fmt::format("simulated {}: a column is {:.4g}, all {:.4g}\n{}", simulated.schedule, scale.unit,
                                   simulated.makespan(), letters);
  result += draw_text(simulated, scale, width);
  if (measured == nullptr) return result;
  const double whole = measured->makespan();
  result += fmt::format("\nmeasured {}: a column is {:.4g} s, all {:.4g} s\n", measured->schedule,
                        whole / scale.num_units, whole);
  result += draw_text(*measured, scale, width);
  return result;
}

}  // namespace megalith
