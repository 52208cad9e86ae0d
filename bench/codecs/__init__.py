"""Every codec that runs here: ours and those of others, behind one interface (base.py)."""

from bench.codecs.base import Codec
from bench.codecs.m3b import M3b
from bench.codecs.ours import Mixture, Pursuit, Wire
from bench.codecs.qsgd import Qsgd
from bench.codecs.raw import Blockwise8, Float
from bench.codecs.rotated import Eden, ZerothOrder
from bench.codecs.topk import SparseLoCo, TopK

OURS: tuple[Codec, ...] = (Mixture(), Wire(), Pursuit())
THEIRS: tuple[Codec, ...] = (TopK(), SparseLoCo(), Eden(), Qsgd(), ZerothOrder())
FIXED: tuple[Codec, ...] = (Float("fp32", "<f4"), Float("fp16", "<f2"), Blockwise8(), M3b())
