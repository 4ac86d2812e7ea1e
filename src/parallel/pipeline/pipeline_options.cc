#include "parallel/pipeline/pipeline_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "config/option.h"
#include "core/number_of.h"
#include "core/strings.h"

namespace megalith {

void PipelineOptions::visit(OptionVisitor& v) {
  v.group("Pipeline parallelism", {.changes_numbers = false, .in_toy = InToy::kMade, .acts_in = kOnLayouts | kPlan});
  v.field("pp_algorithm", pp_algorithm,
          "The order of work in a pipeline: gpipe, 1f1b, 1f1b-interleaved (1f1b with virtual stages), zero-bubble "
          "(weight gradients fill the gaps, memory of 1f1b) or zbv-formatted (two virtual stages a rank in a V, no gap "
          "in the steady state; also written zbv). Default: 1f1b.");
  v.field("enable_zero_bubble", enable_zero_bubble, "Older option for pp_algorithm zero-bubble.");
  v.field("zero_bubble_v_schedule", zero_bubble_v_schedule, "Older option for pp_algorithm zbv-formatted.");
  v.field("num_virtual_stages_per_pipeline_rank", num_virtual_stages_per_pipeline_rank,
          "Parts of the model that each pipeline rank holds, taken in turns over the ranks: smaller gaps for more "
          "communication.")
      .alias("virtual_pipeline_model_parallel_size")
      .unit("stages")
      .at_least(1);
  v.field("num_layers_per_virtual_pipeline_stage", num_layers_per_virtual_pipeline_stage,
          "Number of layers in each of these parts, instead of num_virtual_stages_per_pipeline_rank.")
      .unit("layers")
      .at_least(1);
  v.field("pipeline_model_parallel_layout", pipeline_model_parallel_layout,
          "What each stage holds, in the order of the model: E the embedding, t a layer, m a prediction module, L the "
          "loss, | between stages, x*n or (…)*n repeats: \"Et*3|(tt|)*14,L\". A multiple of the pipeline ranks makes "
          "virtual stages.");
  v.field("microbatch_group_size_per_virtual_pipeline_stage", microbatch_group_size_per_virtual_pipeline_stage,
          "Microbatches that a virtual stage takes before the rank turns to its next one; default: "
          "pipeline_model_parallel_size.")
      .alias("microbatch_group_size_per_vp_stage")
      .unit("microbatches")
      .at_least(1);
  v.field("decoder_first_pipeline_num_layers", decoder_first_pipeline_num_layers,
          "Layers on the first pipeline rank; the other ranks share the rest evenly.")
      .unit("layers")
      .at_least(0);
  v.field("decoder_last_pipeline_num_layers", decoder_last_pipeline_num_layers,
          "Layers on the last pipeline rank; the other ranks share the rest evenly.")
      .unit("layers")
      .at_least(0);
  v.field("account_for_embedding_in_pipeline_split", account_for_embedding_in_pipeline_split,
          "Count the embedding as a layer when layers are shared out: the first stage gets one less.");
  v.field("account_for_loss_in_pipeline_split", account_for_loss_in_pipeline_split,
          "Count the head and the loss as a layer when layers are shared out: the last stage gets one less.");
  v.field(
      "allow_padding_num_layers", allow_padding_num_layers,
      "Where the stages do not divide the layers, the first stages hold one more. Otherwise the embedding and the head "
      "count as a layer each.");
  v.field(
       "pipeline_model_parallel_split_rank", pipeline_model_parallel_split_rank,
       "With model_type t5: the pipeline rank that the decoder begins on. The ranks in front share the encoder's "
       "layers, it and those behind the decoder's. Default: all ranks share the layers of both stacks.")
      .at_least(1);
  v.field("encoder_pipeline_model_parallel_size", encoder_pipeline_model_parallel_size,
          "The same as pipeline_model_parallel_split_rank in newer words: how many of the pipeline's ranks hold the "
          "encoder. pipeline_model_parallel_size counts them too. 0: not said.")
      .unit("ranks")
      .at_least(0);
  v.field(
       "encoder_tensor_model_parallel_size", encoder_tensor_model_parallel_size,
       "Ranks that share the matrices of an encoder's layers: tensor_model_parallel_size, as those of the decoder's, "
       "or 0, which means the same.")
      .unit("ranks")
      .at_least(0);
}

namespace {

struct AlgorithmWord {
  std::string_view word;
  PipelineAlgorithm algorithm;
};
constexpr AlgorithmWord kAlgorithmWords[] = {{"gpipe", PipelineAlgorithm::kGpipe},
                                             {"1f1b", PipelineAlgorithm::k1f1b},
                                             {"1f1b-interleaved", PipelineAlgorithm::k1f1b},
                                             {"zero-bubble", PipelineAlgorithm::kZeroBubble},
                                             {"zbv-formatted", PipelineAlgorithm::kZeroBubbleV},
                                             {"zbv", PipelineAlgorithm::kZeroBubbleV}};

// Primus's other algorithms, and our nearest.
struct MissingAlgorithm {
  std::string_view word, nearest;
};
constexpr MissingAlgorithm kMissingAlgorithms[] = {
    {"zero-bubble-heuristic", "zero-bubble"}, {"v-half", "zbv-formatted"}, {"v-min", "zbv-formatted"}};

// Builds a plan and collects errors; complete if there are none.
class PlanMaker {
 public:
  PlanMaker(const PipelineOptions& options, int64_t pipeline_size, std::span<const Unit> units)
      : o_(options),
        p_(pipeline_size),
        num_layers_(count_units(units, UnitLetter::kLayer)),
        num_modules_(count_units(units, UnitLetter::kPrediction)) {
    check_units(units);
    plan.units.assign(units.begin(), units.end());
    read_algorithm();
    if (p_ == 1) {
      check_single();
      if (errors.empty()) plan.stages = {{0, std::ssize(units)}};
      return;
    }
    check_one_way_to_say_chunks();
    const size_t num_errors = errors.size();
    read_split(units);
    if (errors.size() > num_errors) return;
    if (o_.pipeline_model_parallel_layout)
      read_layout();
    else if (split_)
      share_out_stacks();
    else
      share_out();
    if (errors.empty()) check_chunks();
    if (errors.empty()) check_group();
  }

  std::vector<UserError> errors;
  PipelinePlan plan;

 private:
  void refuse(std::string message, std::string remedy) { errors.emplace_back(std::move(message), std::move(remedy)); }

  void read_algorithm() {
    const bool is_old = o_.enable_zero_bubble || o_.zero_bubble_v_schedule;
    const std::string old_name = o_.zero_bubble_v_schedule ? "zero_bubble_v_schedule" : "enable_zero_bubble";
    const PipelineAlgorithm old =
        o_.zero_bubble_v_schedule ? PipelineAlgorithm::kZeroBubbleV : PipelineAlgorithm::kZeroBubble;
    if (!o_.pp_algorithm) {
      plan.algorithm = is_old ? old : PipelineAlgorithm::k1f1b;
      word_ = is_old ? old_name : "pp_algorithm 1f1b";
    } else {
      std::string word = lower_case(*o_.pp_algorithm);
      std::replace(word.begin(), word.end(), '_', '-');
      word_ = fmt::format("pp_algorithm {}", *o_.pp_algorithm);
      is_interleaved_ = word == "1f1b-interleaved";
      const auto found = std::find_if(std::begin(kAlgorithmWords), std::end(kAlgorithmWords),
                                      [&](const AlgorithmWord& known) { return known.word == word; });
      if (found == std::end(kAlgorithmWords)) return refuse_algorithm(word);
      plan.algorithm = found->algorithm;
      if (is_old && plan.algorithm != old) {
        refuse(fmt::format("{} and {} ask for different schedules", old_name, word_),
               fmt::format("leave {} out: pp_algorithm says it all", old_name));
      }
    }
    // With one rank every algorithm is one microbatch after another.
    if (p_ == 1) plan.algorithm = PipelineAlgorithm::k1f1b;
    plan.num_ranks = narrow<int>(p_);
    if (plan.algorithm == PipelineAlgorithm::kZeroBubbleV) plan.order = StageOrder::kVee;
  }

  void refuse_algorithm(const std::string& word) {
    std::vector<std::string> words;
    for (const AlgorithmWord& known : kAlgorithmWords) words.emplace_back(known.word);
    for (const MissingAlgorithm& missing : kMissingAlgorithms) {
      if (missing.word != word) continue;
      return refuse(fmt::format("{} is not supported", word_), fmt::format("the nearest is {}", missing.nearest));
    }
    const std::string nearest = nearest_word(word, words);
    refuse(fmt::format("{} is no schedule that is known here{}", word_,
                       nearest.empty() ? "" : fmt::format(". Did you mean '{}'?", nearest)),
           fmt::format("use one of {}", fmt::join(words, ", ")));
  }

  // Options that cut a model into stages need several ranks.
  void check_single() {
    const auto needs_ranks = [&](bool is_given, std::string_view what) {
      if (!is_given) return;
      refuse(fmt::format("{} needs pipeline_model_parallel_size above 1", what),
             "set pipeline_model_parallel_size, or leave it out");
    };
    needs_ranks(is_interleaved_, word_);
    const int64_t num_virtual = o_.num_virtual_stages_per_pipeline_rank.value_or(1);
    needs_ranks(num_virtual > 1, fmt::format("num_virtual_stages_per_pipeline_rank {}", num_virtual));
    needs_ranks(
        o_.num_layers_per_virtual_pipeline_stage.value_or(num_layers_) != num_layers_,
        fmt::format("num_layers_per_virtual_pipeline_stage {}", o_.num_layers_per_virtual_pipeline_stage.value_or(0)));
    needs_ranks(o_.pipeline_model_parallel_layout.has_value(), "pipeline_model_parallel_layout");
    needs_ranks(o_.microbatch_group_size_per_virtual_pipeline_stage.has_value(),
                "microbatch_group_size_per_virtual_pipeline_stage");
    for (const std::string& name : uneven_options()) needs_ranks(true, name);
    if (const auto rank = o_.pipeline_model_parallel_split_rank) {
      needs_ranks(true, fmt::format("pipeline_model_parallel_split_rank {}", *rank));
    }
    if (const int64_t size = o_.encoder_pipeline_model_parallel_size; size > 0) {
      needs_ranks(true, fmt::format("encoder_pipeline_model_parallel_size {}", size));
    }
  }

  // The given options that shift layers between stages.
  std::vector<std::string> uneven_options() const {
    std::vector<std::string> names;
    if (o_.decoder_first_pipeline_num_layers) names.emplace_back("decoder_first_pipeline_num_layers");
    if (o_.decoder_last_pipeline_num_layers) names.emplace_back("decoder_last_pipeline_num_layers");
    if (o_.account_for_embedding_in_pipeline_split) names.emplace_back("account_for_embedding_in_pipeline_split");
    if (o_.account_for_loss_in_pipeline_split) names.emplace_back("account_for_loss_in_pipeline_split");
    return names;
  }

  bool says_chunks_of_layout() const {
    if (!o_.pipeline_model_parallel_layout || !o_.num_virtual_stages_per_pipeline_rank) return false;
    try {
      return std::ssize(parse_pipeline_layout(*o_.pipeline_model_parallel_layout)) ==
             p_ * *o_.num_virtual_stages_per_pipeline_rank;
    } catch (const UserError&) {
      return true;  // read_layout() says what is wrong
    }
  }

  void check_one_way_to_say_chunks() {
    std::vector<std::string> names;
    if (o_.num_layers_per_virtual_pipeline_stage) names.emplace_back("num_layers_per_virtual_pipeline_stage");
    if (o_.num_virtual_stages_per_pipeline_rank) names.emplace_back("num_virtual_stages_per_pipeline_rank");
    if (o_.pipeline_model_parallel_layout) names.emplace_back("pipeline_model_parallel_layout");
    if (names.size() < 2 || (names.size() == 2 && says_chunks_of_layout())) return;
    refuse(fmt::format("{} each say how many stages there are", fmt::join(names, " and ")), "keep one of them");
  }

  // ---- stages of an encoder and of a decoder ----

  void read_split(std::span<const Unit> units) {
    const auto rank = o_.pipeline_model_parallel_split_rank;
    const int64_t size = o_.encoder_pipeline_model_parallel_size;
    if (!rank && size == 0) return;
    const std::string by_rank = fmt::format("pipeline_model_parallel_split_rank {}", rank.value_or(0));
    const std::string by_size = fmt::format("encoder_pipeline_model_parallel_size {}", size);
    if (rank && size > 0 && *rank != size) {
      return refuse(fmt::format("{} and {} both say how many stages are the encoder's", by_rank, by_size),
                    "keep one of them");
    }
    const std::string& said = rank ? by_rank : by_size;
    const auto border = std::find_if(units.begin(), units.end(), [](const Unit& unit) {
      return std::find(unit.gives.begin(), unit.gives.end(), "memory") != unit.gives.end();
    });
    if (border == units.end()) {
      return refuse(fmt::format("{} is for a model with an encoder beside its decoder", said), "leave it out");
    }
    num_encoder_layers_ =
        count_units(units.subspan(0, static_cast<size_t>(border - units.begin())), UnitLetter::kLayer);
    split_ = rank.value_or(size);
    if (*split_ >= p_) {
      return refuse(
          fmt::format("{} leaves the decoder no rank: pipeline_model_parallel_size is {}", said, p_),
          fmt::format("pipeline_model_parallel_size counts the ranks of both stacks: give it more than {}, or "
                      "set the other from 1 to {}",
                      *split_, p_ - 1));
    }
    std::vector<std::string> others = uneven_options();
    if (o_.pipeline_model_parallel_layout) others.emplace_back("pipeline_model_parallel_layout");
    if (o_.num_layers_per_virtual_pipeline_stage) others.emplace_back("num_layers_per_virtual_pipeline_stage");
    if (o_.num_virtual_stages_per_pipeline_rank.value_or(1) > 1) {
      others.emplace_back("num_virtual_stages_per_pipeline_rank");
    }
    if (plan.order == StageOrder::kVee) others.push_back(word_);
    for (const std::string& other : others) {
      refuse(fmt::format("{} and {} both say which layers a stage gets", said, other), "keep one of them");
    }
  }

  void share_out_stacks() {
    std::vector<int64_t> sizes;
    const auto share = [&](const char* stack, int64_t layers, int64_t ranks) {
      if (layers < ranks) {
        return refuse(fmt::format("the {} layers of the {} leave some of its {} pipeline ranks without one", layers,
                                  stack, ranks),
                      "move pipeline_model_parallel_split_rank, or take fewer pipeline ranks");
      }
      const bool is_encoder = sizes.empty(), is_spread = layers % ranks != 0 && !o_.allow_padding_num_layers;
      std::vector<int64_t> work(static_cast<size_t>(ranks), 0);
      if (is_spread) ++(is_encoder ? work.front() : work.back());
      plan.counts_ends |= is_spread;
      for (const int64_t share : share_by_work(std::move(work), layers)) sizes.push_back(share);
    };
    share("encoder", num_encoder_layers_, *split_);
    share("decoder", num_layers_ - num_encoder_layers_, p_ - *split_);
    if (errors.empty()) cut_by_layers(sizes);
  }

  // ---- a layout ----

  void read_layout() {
    for (const std::string& name : uneven_options()) {
      refuse(fmt::format("pipeline_model_parallel_layout and {} both say which layers a stage gets", name),
             fmt::format("keep the layout, leave {} out", name));
    }
    std::vector<std::string> stages;
    try {
      stages = parse_pipeline_layout(*o_.pipeline_model_parallel_layout);
    } catch (const UserError& error) {
      errors.push_back(error);
      return;
    }
    const auto num_stages = static_cast<int64_t>(stages.size());
    if (num_stages % p_ != 0) {
      refuse(
          fmt::format("pipeline_model_parallel_layout has {} stages, pipeline_model_parallel_size {} does not divide "
                      "them",
                      num_stages, p_),
          fmt::format("write {} stages, or a multiple", p_));
    } else {
      plan.num_chunks = narrow<int>(num_stages / p_);
    }
    check_letters(stages);
    if (!errors.empty()) return;
    std::vector<int64_t> cuts;
    int64_t num_letters = 0;
    for (const std::string& stage : stages) cuts.push_back(behind_letters(num_letters += std::ssize(stage)));
    cut_at(cuts);
  }

  void check_letters(const std::vector<std::string>& stages) {
    const auto wrong = [&](const std::string& what, const std::string& remedy) {
      refuse(fmt::format("pipeline_model_parallel_layout {}", what), remedy);
    };
    std::string all;
    for (size_t i = 0; i < stages.size(); ++i) {
      if (stages[i].empty()) {
        wrong(fmt::format("has nothing in stage {} of {}", i + 1, stages.size()),
              "take out the | that makes an empty stage, or give it a layer");
      }
      all += stages[i];
    }
    const auto count = [&](char letter) { return std::count(all.begin(), all.end(), letter); };
    if (count('E') != 1 || !all.starts_with('E')) {
      wrong(fmt::format("has {} E, {}", count('E'), count('E') == 1 ? "but not at its beginning" : "not one"),
            "write one E, as the first letter");
    }
    if (count('L') != 1 || !all.ends_with('L')) {
      wrong(fmt::format("has {} L, {}", count('L'), count('L') == 1 ? "but not at its end" : "not one"),
            "write one L, as the last letter");
    }
    if (count('t') != num_layers_) {
      wrong(fmt::format("has {} t, num_layers is {}", count('t'), num_layers_), "write one t a layer");
    }
    if (count('m') != num_modules_) {
      wrong(num_modules_ == 0 ? fmt::format("has {} m, but the model has no prediction modules", count('m'))
                              : fmt::format("has {} m, the model has {} prediction modules", count('m'), num_modules_),
            num_modules_ == 0 ? "leave m out" : "write one m a module");
    } else if (num_modules_ > 0 && count('t') > 0 && all.find('m') < all.rfind('t')) {
      wrong("has an m in front of a t", "prediction modules read the output of the last layer: write m behind all t");
    } else if (num_modules_ > 0 && std::count(stages.back().begin(), stages.back().end(), 'm') != num_modules_) {
      wrong("has an m in another stage than L", "prediction modules use the head: write them in its stage, as in |tmL");
    }
    if (!errors.empty()) return;
    std::string expected;
    for (const Unit& unit : plan.units) {
      if (unit.letter != UnitLetter::kNone) expected += static_cast<char>(unit.letter);
    }
    MEGALITH_CHECK(all == expected, "a layout of {} for units {}", all, expected);
  }

  // ---- sizes ----

  void share_out() {
    const int64_t first = o_.decoder_first_pipeline_num_layers.value_or(-1);
    const int64_t last = o_.decoder_last_pipeline_num_layers.value_or(-1);
    const bool counts_ends = o_.account_for_embedding_in_pipeline_split || o_.account_for_loss_in_pipeline_split;
    if (first < 0 && last < 0) return share_out_evenly();
    if (counts_ends) {
      refuse(fmt::format("{} all shift layers between stages", fmt::join(uneven_options(), " and ")),
             "use decoder_first/last_pipeline_num_layers or account_for_embedding/loss_in_pipeline_split, not both");
    }
    if (plan.order == StageOrder::kVee) {
      refuse(fmt::format("{} has the first and the last stage on one rank, which {} cannot describe", word_,
                         fmt::join(uneven_options(), " and ")),
             "use account_for_embedding/loss_in_pipeline_split or pipeline_model_parallel_layout");
    }
    if (o_.num_layers_per_virtual_pipeline_stage) {
      refuse(fmt::format("num_layers_per_virtual_pipeline_stage {} is not the same on all ranks with {}",
                         *o_.num_layers_per_virtual_pipeline_stage, fmt::join(uneven_options(), " and ")),
             "use num_virtual_stages_per_pipeline_rank");
    }
    const int64_t chunks = o_.num_virtual_stages_per_pipeline_rank.value_or(1);
    const int64_t middle_ranks = p_ - (first >= 0) - (last >= 0);
    const int64_t middle = num_layers_ - std::max<int64_t>(first, 0) - std::max<int64_t>(last, 0);
    if (middle < 0 || (middle_ranks == 0 ? middle != 0 : middle % middle_ranks != 0)) {
      refuse(fmt::format("num_layers {} less those of {} are {}, to be shared by {} other pipeline rank{}", num_layers_,
                         fmt::join(uneven_options(), " and "), middle, middle_ranks, middle_ranks == 1 ? "" : "s"),
             middle_ranks == 0 ? "make the two add up to num_layers"
                               : fmt::format("leave a multiple of {} layers", middle_ranks));
    }
    const int64_t each = middle_ranks > 0 ? middle / middle_ranks : 0;
    for (const int64_t layers : {std::max<int64_t>(first, 0), each, std::max<int64_t>(last, 0)}) {
      if (layers % chunks == 0 || !errors.empty()) continue;
      refuse(fmt::format("num_virtual_stages_per_pipeline_rank {} does not divide the {} layers of a rank", chunks,
                         layers),
             "change decoder_first/last_pipeline_num_layers, or use pipeline_model_parallel_layout");
    }
    if (!errors.empty()) return;
    plan.num_chunks = narrow<int>(chunks);
    std::vector<int64_t> sizes;
    for (int64_t stage = 0; stage < p_ * chunks; ++stage) {
      const int64_t rank = stage % p_;
      const int64_t layers = rank == 0 && first >= 0 ? first : rank == p_ - 1 && last >= 0 ? last : each;
      sizes.push_back(layers / chunks);
    }
    cut_by_layers(sizes);
  }

  // Where the stages do not divide the layers, the ends count without being asked.
  void share_out_evenly() {
    int64_t embedding = o_.account_for_embedding_in_pipeline_split, loss = o_.account_for_loss_in_pipeline_split;
    int64_t layers = 0;
    for (const Unit& unit : plan.units) layers += unit.letter == UnitLetter::kLayer ? unit.layers_worth : 0;
    const int64_t counted = layers + embedding + loss;
    int64_t chunks = plan.order == StageOrder::kVee ? 2 : 1;
    if (o_.num_virtual_stages_per_pipeline_rank) chunks = *o_.num_virtual_stages_per_pipeline_rank;
    if (const auto per_stage = o_.num_layers_per_virtual_pipeline_stage) {
      const int64_t of_ranks = p_ * *per_stage;
      if (counted % of_ranks != 0 && !o_.allow_padding_num_layers) {
        const std::string ends =
            embedding + loss == 2 ? "embedding and the loss" : (embedding == 1 ? "embedding" : "loss");
        return refuse(fmt::format("num_layers {}{} cannot be cut into stages of num_layers_per_virtual_pipeline_stage "
                                  "{} on {} pipeline ranks",
                                  num_layers_, embedding + loss == 0 ? "" : " and the " + ends, *per_stage, p_),
                      fmt::format("make num_layers a multiple of {}, or say how many stages there are with "
                                  "num_virtual_stages_per_pipeline_rank, which share them by their work",
                                  of_ranks));
      }
      chunks = div_up(counted, of_ranks);
    }
    if (chunks > std::ssize(plan.units) / p_) {
      return refuse(fmt::format("{} pipeline ranks with {} each cannot share the {} parts of this model", p_,
                                number_of(chunks, "stage", "stages"), plan.units.size()),
                    "give every pipeline rank layers, or use fewer virtual stages");
    }
    std::vector<int64_t> work(static_cast<size_t>(p_ * chunks), 0);
    if (embedding + loss == 0 && counted % std::ssize(work) != 0 && !o_.allow_padding_num_layers) {
      plan.counts_ends = true;
      embedding = 1, loss = 1 + num_modules_;
    }
    work.front() += embedding;
    work.back() += loss;
    plan.num_chunks = narrow<int>(chunks);
    cut_by_layers(layers_of_shares(share_by_work(std::move(work), layers)));
  }

  // Hands out layers one by one, each to the stage with the least work, the first of equals: in loops and in Vs, ranks
  // then differ by no more than stages must.
  // work  that stages have besides, in layers
  static std::vector<int64_t> share_by_work(std::vector<int64_t> work, int64_t layers) {
    std::vector<int64_t> shares(work.size(), 0);
    for (; layers > 0; --layers) {
      const auto least = std::ranges::min_element(work) - work.begin();
      ++work[static_cast<size_t>(least)];
      ++shares[static_cast<size_t>(least)];
    }
    return shares;
  }

  // Layers in each share, of which one within a layer ends before or after it, as is nearer.
  std::vector<int64_t> layers_of_shares(const std::vector<int64_t>& shares) const {
    std::vector<int64_t> sizes;
    auto unit = plan.units.begin();
    int64_t end = 0, worth = 0;
    for (const int64_t share : shares) {
      end += share;
      sizes.push_back(0);
      for (; unit != plan.units.end(); ++unit) {
        if (unit->letter != UnitLetter::kLayer) continue;
        if (2 * worth + unit->layers_worth >= 2 * end) break;
        worth += unit->layers_worth;
        ++sizes.back();
      }
    }
    return sizes;
  }

  // ---- cuts ----

  // Cuts by layers per stage; other units are at the ends.
  void cut_by_layers(const std::vector<int64_t>& sizes) {
    int64_t num_letters = 0;
    for (const Unit& unit : plan.units) {
      if (unit.letter == UnitLetter::kLayer) break;
      if (unit.letter == UnitLetter::kEmbedding) ++num_letters;
    }
    std::vector<int64_t> cuts;
    for (const int64_t size : sizes) cuts.push_back(behind_letters(num_letters += size));
    cuts.back() = std::ssize(plan.units);
    cut_at(cuts);
  }

  // The index after this many units written in a layout and the unwritten ones that stay with the last.
  int64_t behind_letters(int64_t count) const {
    const std::vector<Unit>& units = plan.units;
    size_t place = 0;
    for (; place < units.size() && count > 0; ++place) count -= units[place].letter == UnitLetter::kNone ? 0 : 1;
    while (place > 0 && place < units.size() && units[place - 1].stays_with_next) ++place;
    return static_cast<int64_t>(place);
  }

  void cut_at(const std::vector<int64_t>& ends) {
    int64_t begin = 0;
    for (size_t i = 0; i < ends.size(); ++i) {
      if (ends[i] <= begin) {
        return refuse(fmt::format("stage {} of {} would hold nothing", i + 1, ends.size()),
                      "give every pipeline rank layers, or use fewer virtual stages");
      }
      plan.stages.push_back({begin, ends[i] - begin});
      begin = ends[i];
    }
    MEGALITH_CHECK(begin == std::ssize(plan.units), "the stages end at unit {} of {}", begin, plan.units.size());
  }

  // ---- what an algorithm takes ----

  void check_chunks() {
    const int chunks = plan.num_chunks;
    switch (plan.algorithm) {
      case PipelineAlgorithm::kGpipe:
        return;
      case PipelineAlgorithm::kZeroBubble:
        if (chunks == 1) return;
        return refuse(fmt::format("{} takes one stage a rank, there are {}", word_, chunks),
                      "leave virtual stages out, or use pp_algorithm 1f1b-interleaved");
      case PipelineAlgorithm::kZeroBubbleV:
        if (chunks == 2) return;
        return refuse(
            fmt::format("{} takes two virtual stages a rank, there {} {}", word_, chunks == 1 ? "is" : "are", chunks),
            "set num_virtual_stages_per_pipeline_rank to 2, or leave it out");
      case PipelineAlgorithm::k1f1b:
        if (!is_interleaved_ || chunks > 1) return;
        return refuse(fmt::format("{} needs virtual stages", word_),
                      "set num_virtual_stages_per_pipeline_rank to 2 or more, or use pp_algorithm 1f1b");
    }
  }

  void check_group() {
    if (!o_.microbatch_group_size_per_virtual_pipeline_stage) return;
    const int64_t group = *o_.microbatch_group_size_per_virtual_pipeline_stage;
    if (plan.algorithm != PipelineAlgorithm::k1f1b || plan.num_chunks == 1) {
      refuse(fmt::format("microbatch_group_size_per_virtual_pipeline_stage {} is for interleaved virtual stages, of "
                         "which there are none",
                         group),
             "leave it out, or set num_virtual_stages_per_pipeline_rank");
    } else if (group < p_) {
      refuse(fmt::format("microbatch_group_size_per_virtual_pipeline_stage {} is below pipeline_model_parallel_size {}",
                         group, p_),
             fmt::format("use at least {}, or leave it out", p_));
    } else {
      plan.microbatch_group = narrow<int>(group);
    }
  }

  const PipelineOptions& o_;
  int64_t p_, num_layers_, num_modules_;
  std::optional<int64_t> split_;  // encoder ranks, if given
  int64_t num_encoder_layers_ = 0;
  std::string word_;  // the user's name of the algorithm
  bool is_interleaved_ = false;
};

}  // namespace

std::vector<UserError> check_pipeline(const PipelineOptions& options, int64_t pipeline_size,
                                      std::span<const Unit> units) {
  return PlanMaker(options, pipeline_size, units).errors;
}

PipelinePlan make_pipeline_plan(const PipelineOptions& options, int64_t pipeline_size, std::span<const Unit> units) {
  PlanMaker maker(options, pipeline_size, units);
  MEGALITH_CHECK(maker.errors.empty(), "the pipeline options were not checked: {}", maker.errors.front().message());
  return std::move(maker.plan);
}

std::vector<UserError> check_microbatches(const PipelinePlan& plan, int64_t num_microbatches) {
  std::vector<UserError> errors;
  const bool is_interleaved = plan.algorithm == PipelineAlgorithm::k1f1b && plan.num_chunks > 1;
  if (!is_interleaved) return errors;
  const int64_t p = plan.num_ranks, group = plan.microbatch_group == 0 ? p : plan.microbatch_group;
  const int64_t rest = num_microbatches % group;
  if (rest == 0 || rest >= p) return errors;
  const std::string whose = plan.microbatch_group == 0
                                ? fmt::format("pipeline_model_parallel_size {}", p)
                                : fmt::format("microbatch_group_size_per_virtual_pipeline_stage {}", group);
  errors.emplace_back(
      fmt::format("{} microbatches a step cannot be taken in groups of {} by interleaved virtual stages",
                  num_microbatches, whose),
      fmt::format("make global_batch_size a multiple of {} × micro_batch_size × data-parallel ranks, or leave virtual "
                  "stages out",
                  group));
  return errors;
}

}  // namespace megalith
