// The eras of a run with --fault_tolerance (train/eras.h): what is left of one and the way into the next.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/session.h"
#include "core/time.h"
#include "metrics/step_record.h"
#include "train/eras.h"
#include "train/memory_checkpoint.h"
#include "train/trainer.h"

namespace megalith {

class TrainingEras {
 public:
  // Both outlive it. session: of start_session(), without groups.
  TrainingEras(CommandContext& context, Session& session, const Launch& launch, const StopRequest& stop);

  // Connects this era's ranks.
  void connect();
  EraHooks hooks();
  // Loads, or takes over from the last era. trainer outlives it, or is kept.
  void begin(Trainer& trainer);
  // The era ended because ranks were lost, or others wait to join: keeps what the next one needs.
  //   trainer  may be null
  void keep(std::unique_ptr<Trainer> trainer);
  // Agrees with the others on the next era and enters it; blocks as long as this process belongs to none.
  // CommunicationError; RunIsOver.
  void next();

  bool is_first() const { return era_.number == 0; }
  const std::vector<std::string>& texts() const { return texts_; }  // what happened so far, a sentence a change

 private:
  RollRules rules() const;
  void begin_from_memory(Trainer& trainer);
  void keep_in_memory(const Trainer& trainer);
  void enter(const Era& era);
  void complete_step(const Era& era);
  std::vector<EventRecord> events_of(const Era& era, const std::string& reason, int64_t batch_before) const;

  CommandContext& context_;
  Session& session_;
  Launch launch_;
  const StopRequest& stop_;
  std::unique_ptr<Resolved> first_;  // the first era's; null while that runs
  Mesh mesh_;                        // of all seats
  Axis axis_;
  Era era_;
  std::unique_ptr<Trainer> cut_;  // whose last step lacks numbers of another rank
  std::optional<CarriedRun> carried_;
  std::optional<MemoryCheckpoint> memory_;  // with fault_tolerance restart
  Trainer* trainer_ = nullptr;              // this era's, once it has begun
  int64_t last_made_ = 0;                   // iteration, before the last loss
  std::string reason_;                      // of the last loss
  Stopwatch since_start_;
  bool has_begun_ = false;  // the trainer of this era holds a state
  int num_vain_ = 0;        // eras in a row that made no step
  std::vector<EventRecord> events_;
  std::vector<std::string> texts_;
};

// "the newest checkpoint is …", for the end of a run that cannot go on.
std::string newest_checkpoint_text(const Config& config);

}  // namespace megalith
