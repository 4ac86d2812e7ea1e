// Encoded pictures with captions as batches (flux_batches.h).
#pragma once

#include "core/log.h"
#include "data/data_sets.h"
#include "data/flux_data_options.h"
#include "kinds/flow/flux_batches.h"
#include "models/model_config.h"

namespace megalith {

FluxSampleShape flux_sample_shape(const ModelConfig& model, const FluxDataOptions& data);

// The data sets of the options: folders written by `prepare flux` (flux_folder.h), or with mock_data made-up numbers of
// the right shapes, a function of the sample's number. UserErrors, all at once: folders that are unfinished, damaged,
// or prepared for another size, text length, mode or encoders than the run's, a split without pictures. A sample whose
// bytes changed is refused when read. check_flux_data() returns the folders' problems before a run begins.
std::vector<UserError> check_flux_data(const DataOptions& options, const FluxSampleShape& shape);
DataSets open_flux_data(const DataOptions& options, const FluxSampleShape& shape, const DataSetup& setup, Logger& log);

// Adds meaningless latents, states and pooled vectors to rows, by sample_index.
void add_mock_pictures(Batch& rows, const FluxSampleShape& shape);

}  // namespace megalith
