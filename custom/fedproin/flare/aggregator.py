"""Takes what FLARE delivers to the server's checks. It decides nothing and never raises.

An exception in FLARE's result callback would end the round for all sites with whatever had come until then.
"""

from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.fl_constant import ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.app_common.abstract.aggregator import Aggregator

from fedproin.federation.messages import Answer
from fedproin.federation.server import Server
from fedproin.flare.translation import from_flare

RETURN_CODES = [code for name, code in vars(ReturnCode).items() if name.isupper()]


class FedProInAggregator(Aggregator):
    """Passes answers to the run's `Server`, which checks them and merges by FedAvg and NIA."""

    def __init__(self) -> None:
        super().__init__()
        self.server: Server | None = None

    def accept(self, shareable: Shareable, fl_ctx: FLContext) -> bool:
        """Whether the site's answer was accepted; the reason of a refusal is logged and recorded."""
        try:
            site = str(shareable.get_peer_prop(ReservedKey.IDENTITY_NAME, ""))
            reason = self._take(site, shareable)
        except Exception as error:
            site, reason = "a site", f"its message could not be read ({type(error).__name__})"
        if reason:
            self.log_warning(fl_ctx, f"Refused the answer of {site}: {reason}.")
        return not reason

    def aggregate(self, fl_ctx: FLContext) -> Shareable:
        """The global model as it stands: the server merges the accepted updates when it closes a round."""
        if self.server is None:
            return make_reply(ReturnCode.EMPTY_RESULT)
        return DXO(DataKind.WEIGHTS, data=dict(self.server.global_model())).to_shareable()

    def _take(self, site: str, shareable: Shareable) -> str:
        if self.server is None:
            return "no run has started"
        code = shareable.get_return_code()
        if code != ReturnCode.OK:
            return self.server.refuse(site, f"FLARE reported {code if code in RETURN_CODES else 'an unknown code'}")
        try:
            answer = from_flare(Answer, shareable)
        except Exception:
            return self.server.refuse(site, "it is not a message of this package")
        return self.server.accept(site, answer)
