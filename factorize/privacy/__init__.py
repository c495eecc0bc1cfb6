"""Privacy of a mechanism: targets, calibrations, adjacencies, and selection among several runs."""

from factorize.privacy import selection as selection
from factorize.privacy.adjacency import Adjacency as Adjacency
from factorize.privacy.calibration import NOT_LOOKED_AT as NOT_LOOKED_AT
from factorize.privacy.calibration import Calibration as Calibration
from factorize.privacy.calibration import Presence as Presence
from factorize.privacy.calibration import calibrate as calibrate
from factorize.privacy.calibration import check_kind as check_kind
from factorize.privacy.calibration import check_own as check_own
from factorize.privacy.calibration import refuse_infinite as refuse_infinite
from factorize.privacy.question import PrivacyTarget as PrivacyTarget
from factorize.privacy.selection import BestOf as BestOf
