"""Components of NVFlare for correlated noise: an aggregator, a workflow that chooses by timers, a filter that clips.

The server runs `CorrelatedFedAvg(aggregator=CorrelatedAggregator(rounds))`. `ScatterAndGather` also takes the
aggregator; it asks every client in every round, and clients that are too early are refused.
"""

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.fl_constant import ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_common.workflows.fedavg import FedAvg
from nvflare.fuel.utils import fobs

from factorize.adapters.federated import FederatedRounds
from factorize.adapters.gradients.clipped_sums import clipped, host_array, unflattened
from factorize.errors import InvalidParameter, InvalidParticipation
from factorize.numbers.scalars import check_type, finite_real

_log = logging.getLogger(__name__)


class CorrelatedAggregator(ModelAggregator):
    """The noisy mean of the clients' weight differences, as a weight difference without metrics.

    A client may answer with whole weights if the workflow is a `CorrelatedFedAvg`, which says what it was given.

    Its round is the workflow's: if a server that was killed takes its last released round again, the answers are
    dropped and the same bits are returned.

    Args:
        rounds: the rounds of the run, made for the arrays of the model.
        names: names of the model's parameters, in that order.
    """

    def __init__(self, rounds: FederatedRounds, names: list[str]) -> None:
        super().__init__()
        self.rounds, self.names = rounds, list(names)
        self.model: list[np.ndarray] | None = None  # the workflow's model, if the workflow names one
        self.asks_by_timers = False  # whether a `CorrelatedFedAvg` drives the rounds

    def accept(self, shareable: Shareable, fl_ctx: FLContext) -> bool:
        """Add the answer of the client that NVFlare has authenticated, whatever name its meta data give."""
        self.fl_ctx = fl_ctx
        client = shareable.get_peer_prop(ReservedKey.IDENTITY_NAME, "")
        if not client or shareable.get_return_code() != ReturnCode.OK:
            _log.warning("ignored an answer of client %r, which has no name or reports a failure", client)
            return False
        try:
            model = FLModelUtils.from_shareable(shareable, fl_ctx)
        except (ValueError, TypeError, KeyError, AttributeError) as reason:
            _log.warning("the answer of client %r is not a model: %s", client, str(reason)[:200])
            model = FLModel(params_type=ParamsType.DIFF, params={"": 0.0})
        model.current_round = shareable.get_cookie(AppConstants.CONTRIBUTION_ROUND, model.current_round)
        model.meta = {"client_name": client}
        return self._add(model)

    def accept_model(self, model: FLModel) -> None:
        """Add the difference of one client, whose name the workflow has set; a wrong one counts as zeros."""
        self._add(model)

    def _add(self, model: FLModel) -> bool:
        """Add a difference, and return whether it counts."""
        meta = model.meta or {}
        client, current = meta.get("client_name", ""), model.current_round
        if current is not None and current != self.rounds.step:
            _log.warning("round %d ignores an answer of client %r to round %d", self.rounds.step, client, current)
            return False
        self.rounds.admit([client])
        params = model.params if isinstance(model.params, dict) else {}
        given = self.model if model.params_type == ParamsType.FULL else None
        if (model.params_type != ParamsType.DIFF and given is None) or not set(params) >= set(self.names):
            _log.warning("client %r sent no weight difference (params_type DIFF) of the model's parameters", client)
            return self.rounds.add(client, [])
        update = (_held(params[name]) for name in self.names)
        return self.rounds.add(client, update if given is None else map(_difference, update, given))

    def aggregate_model(self) -> FLModel:
        """Close the round.

        Raises:
            InvalidParticipation: the round would exceed the budget, or is neither the next nor the last one.
        """
        current = None if self.fl_ctx is None else self.fl_ctx.get_prop(AppConstants.CURRENT_ROUND)
        if current == self.rounds.step - 1 and self.rounds.last is not None:
            mean = self.rounds.last[1]
        elif current in (None, self.rounds.step):
            mean = self.rounds.close(self.model)
        else:
            raise InvalidParticipation(
                f"the workflow is in round {current}, but {self.rounds.step} rounds have been released; set its "
                f"start_round to {self.rounds.step}"
            )
        return FLModel(params_type=ParamsType.DIFF, params=dict(zip(self.names, mean, strict=True)))

    def reset(self, fl_ctx: FLContext) -> None:
        """Keep the sum, since a round ends only with `aggregate_model`; `ScatterAndGather` begins a round with this."""
        self.fl_ctx = fl_ctx

    def reset_stats(self) -> None:
        """Keep the sum likewise; `FedAvg` begins a round with this, before a client is asked.

        Raises:
            InvalidParameter: the workflow is no `CorrelatedFedAvg`.
        """
        if not self.asks_by_timers:
            raise InvalidParameter(
                "a FedAvg of NVFlare would send the number of answers, which has no noise, with each model, and choose "
                "clients whose timers run; nobody was asked. Use CorrelatedFedAvg(aggregator=...), or ScatterAndGather",
                field="aggregator",
            )


def _held(value: ArrayLike) -> ArrayLike:
    """Return an array, also one that NVFlare has left on the disk (`enable_tensor_disk_offload`)."""
    return getattr(value, "materialize", lambda: value)()


def _like(given: object, array: np.ndarray) -> ArrayLike:
    """Return an array, as a tensor of torch where one is given, which has its type."""
    return getattr(given, "new_tensor", np.asarray)(array)


def _difference(trained: object, given: np.ndarray) -> np.ndarray:
    """Return what training has changed; an array of another shape as it is, which the rounds refuse."""
    part = host_array(trained)
    return np.asarray(part - given if part.shape == given.shape else part)


class CorrelatedFedAvg(FedAvg):
    """Federated averaging that asks the clients whose timers allow it, as many as are planned.

    If the server was killed, it continues with the round and the model in the state of the rounds.

    Args:
        aggregator: the aggregator whose rounds are taken.
        model: before the first round, by the names of the parameters; None where a persistor loads it.
        seconds: seconds for which a round waits for its clients; 0 waits for all.
        **options: options of `FedAvg`; `num_rounds` is by default all that are left. Errors of clients are ignored.

    Raises:
        InvalidParameter: an option by which metrics, weights or a choice of parameters would come from the clients, or
            one that the rounds know.
        InvalidParticipation: there are fewer rounds left.
    """

    def __init__(
        self,
        *,
        aggregator: CorrelatedAggregator,
        model: dict[str, np.ndarray] | FLModel | None = None,
        seconds: int = 0,
        **options: Any,
    ) -> None:
        check_type("aggregator", aggregator, CorrelatedAggregator, remedy="give CorrelatedAggregator(rounds)")
        rounds = aggregator.rounds
        finite_real("seconds", seconds, strict=False, remedy="give 0 to wait for all clients")
        for name in ("stop_cond", "patience", "aggregation_weights", "exclude_vars"):
            if options.get(name):
                message = f"{name} needs clients' metrics (without noise) or weights (all equal here); leave it out"
                raise InvalidParameter(message, field=name)
        for name, given in (("num_clients", "clients_a_round"), ("start_round", "state")):
            if name in options:
                message = f"{name}={options[name]} is known from the rounds ({given}); leave it out"
                raise InvalidParameter(message, field=name)
        self._trained: dict[str, np.ndarray] = {}
        params = (model.params if isinstance(model, FLModel) else model) or {}
        if any(hasattr(each, "new_tensor") for each in params.values()):
            from nvflare.app_opt.pt.decomposers import TensorDecomposer  # of torch; its persistor registers it likewise

            fobs.register(TensorDecomposer)
        if rounds.last is not None:
            names = aggregator.names
            self._trained = {name: old + step for name, old, step in zip(names, *rounds.last, strict=True)}
            if model is not None:
                model = self._resumed(params)
        settings = {"num_rounds": rounds.steps - rounds.step, "ignore_result_error": True, **options}
        rounds.check_ahead(settings["num_rounds"])
        super().__init__(
            num_clients=rounds.clients_a_round, start_round=rounds.step, aggregator=aggregator, model=model, **settings
        )
        self._rounds, self._seconds, aggregator.asks_by_timers = rounds, seconds, True

    def run(self) -> None:
        """Run the rounds that are left, or save the model if a server that was killed has left none."""
        super().run()
        if not self.num_rounds and self._trained:
            self.save_model(self.load_model() if self.model is None else FLModel(params=self.model))

    def load_model(self) -> FLModel | None:
        """Return the persistor's model, with the parameters of the last released round after a restart."""
        model = super().load_model()
        if model is not None:
            model.params.update(self._resumed(model.params))
        return model

    def _resumed(self, params: Mapping[str, object]) -> dict[str, object]:
        """Return a model with the parameters of the last released round in place of its own."""
        return {**params, **{name: _like(params.get(name), array) for name, array in self._trained.items()}}

    def sample_clients(self, num_clients: int | None = None) -> list[str]:
        """Return the names of clients whose timers allow this round.

        Raises:
            InvalidParticipation: all clients are gone. None was asked, and nothing of the budget was spent.
        """
        names = [client.name for client in self.engine.get_clients()]
        there = [name for name in names if self.get_client_disconnect_time(name) is None]
        if not there:
            raise InvalidParticipation(
                f"none of the {len(names)} clients of the job is connected. Nobody was asked to train and no round "
                "was spent; start the job again when they are back"
            )
        return [str(name) for name in self._rounds.choose(there)]

    def update_model(self, model: FLModel, aggr_result: FLModel) -> FLModel:
        """Return the model with the noisy mean, and without the number of answers, which FedAvg notes without noise."""
        aggr_result.meta = {AppConstants.CURRENT_ROUND: self.current_round}  # is sent to clients, and saved
        aggr_result.params = {name: _like(model.params[name], step) for name, step in aggr_result.params.items()}
        return super().update_model(model, aggr_result)

    def send_model(self, *, data: FLModel, targets: list[str], **options: Any) -> None:
        """Send the model to the chosen clients; to none if no timer allows it, which NVFlare would take for all.

        Raises:
            InvalidParameter: a model without a parameter that the aggregator names, or with one of another shape.
        """
        missing = set(self.aggregator.names) - set(data.params)
        if missing:
            message = f"the model has no parameters {sorted(missing)}; give the aggregator the model's own names"
            message += "" if data.params else ", and the workflow model= or a persistor"
            raise InvalidParameter(message, field="names")
        self.aggregator.model = [host_array(data.params[name]) for name in self.aggregator.names]
        self._rounds.check_ahead(model=self.aggregator.model)
        if targets:
            super().send_model(data=data, targets=targets, timeout=self._seconds, **options)


class ClippedUpdates(DXOFilter):
    """A client's filter of task results: no weight difference leaves it with a larger norm than the server allows.

    The server clips again, whatever its clients do.

    Args:
        clip_norm: bound on the norm of all parameters together.
    """

    def __init__(self, clip_norm: float) -> None:
        super().__init__(supported_data_kinds=[DataKind.WEIGHT_DIFF], data_kinds_to_filter=[DataKind.WEIGHT_DIFF])
        self.clip_norm = finite_real("clip_norm", clip_norm, remedy="give that of the rounds")

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> DXO:
        """Return the difference, scaled down if it is too long.

        Raises:
            InvalidParameter: the difference has entries that are NaN, infinite or no floating-point numbers.
        """
        arrays = [host_array(array) for array in dxo.data.values()]
        vector = clipped(arrays, self.clip_norm)
        if vector is None:
            raise InvalidParameter("the weight difference has NaN or infinite entries; send none", field="update")
        shaped = unflattened(vector, [(array.shape, array.dtype) for array in arrays])
        dxo.data = dict(zip(dxo.data, shaped, strict=True))
        return dxo
